"""What a repository has beside its code is what its hosts publish, and says what is there.

A team may delete these files, or write others: then there is nothing to check.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev import USAGE
from shared.runtime.jars import user_cache

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CHECK, DEPENDENCIES, DEPENDABOT = (
    f".github/{path}.yml" for path in ("workflows/check", "workflows/dependencies", "dependabot")
)
GITLAB, CI, HOOKS = ".gitlab-ci.yml", ".ci/run", ".pre-commit-config.yaml"
PAGE, CONTRIBUTING = "AGENTS.md", "CONTRIBUTING.md"
TEST = "python3 dev.py test"
BEGINS = {
    CHECK: "# Every change passes",
    DEPENDENCIES: "# Once a week, newer packages",
    DEPENDABOT: "# What is pinned outside of Python",
    GITLAB: "# Every change passes",
    CI: "#!/usr/bin/env bash\n# Every check",
    HOOKS: "# Less than a second for each commit",
    PAGE: "# For whoever changes this code",
    CONTRIBUTING: "# Contributing\n",
}
"""The first words of the template's own."""

BADLY_FORMATTED = "import os\nprint( 'x' )\n"


def published(schema: str, *files: Path, transform: str | None = None) -> None:
    """Raises AssertionError with what the schema does not allow. schema: the name of one of check-jsonschema's own."""
    transformed = ["--data-transform", transform] if transform else []
    command = [str(BIN / "check-jsonschema"), "--builtin-schema", schema, *transformed, *map(str, files)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("schemas", "path"),
    [
        (("vendor.github-workflows", "custom.github-workflows-require-timeout"), CHECK),
        (("vendor.github-workflows", "custom.github-workflows-require-timeout"), DEPENDENCIES),
        (("vendor.dependabot",), DEPENDABOT),
        (("vendor.gitlab-ci",), GITLAB),
    ],
)
def test_what_a_host_reads_is_as_it_publishes(schemas: Sequence[str], path: str) -> None:
    _ours(path)
    for schema in schemas:
        published(schema, ROOT / path, transform="gitlab-ci" if path == GITLAB else None)


def test_compose_files_are_as_the_specification_says() -> None:
    known = (ROOT / "docker-compose.yml", ROOT / "compose.dev.yml", ROOT / "deploy" / "containers.yml")
    services = (*ROOT.glob("services/compose.yml"), *ROOT.glob("services/*/deploy/[cds]*.yml"))
    published("vendor.compose-spec", *known, *services)  # the others have tags


@pytest.mark.parametrize("path", [CHECK, GITLAB])
def test_a_host_runs_what_the_readme_says(path: str) -> None:
    test = _yaml(path)["jobs"]["test"]["steps"] if path == CHECK else [{"run": _yaml(path)["test"]["script"]}]
    assert [step["run"] for step in test if "run" in step] == [TEST if path == CHECK else [TEST]]


def test_any_other_host_has_a_script_for_it() -> None:
    assert f"exec {TEST}\n" in _ours(CI)


def test_github_keeps_what_dev_py_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/of-ci")
    (step,) = (s for s in _yaml(CHECK)["jobs"]["test"]["steps"] if "cache@" in s.get("uses", ""))
    assert [path.replace("~", "/home/of-ci") for path in step["with"]["path"].split()] == [
        str(user_cache()),
        "/home/of-ci/.cache/pip",
    ]
    assert [key for key in re.findall(r"'(.+?)'", step["with"]["key"]) if not [*ROOT.glob(key)]] == []


def test_gitlab_keeps_what_dev_py_downloads() -> None:
    gitlab = _yaml(GITLAB)
    cache = gitlab[".with-packages"]["cache"]
    assert gitlab["variables"]["XDG_CACHE_HOME"] == f"$CI_PROJECT_DIR/{cache['paths'][0]}"
    assert [key for key in cache["key"]["files"] if not [*ROOT.glob(key)]] == []


@pytest.mark.parametrize("workflow", [CHECK, DEPENDENCIES])
def test_every_action_is_pinned_to_a_commit(workflow: str) -> None:
    uses = re.findall(r"uses: (.+)", _ours(workflow))
    assert uses
    assert [each for each in uses if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_what_may_write_to_github_runs_nothing_that_was_fetched() -> None:
    jobs = _yaml(DEPENDENCIES)["jobs"]
    writing = [name for name, job in jobs.items() if "write" in (job.get("permissions") or {}).values()]
    assert writing == ["propose"]
    assert not re.search(r"dev\.py|pip|uv", str([step.get("run") for step in jobs["propose"]["steps"][:-1]]))


def test_what_may_write_to_gitlab_runs_nothing_that_was_fetched() -> None:
    gitlab = _yaml(GITLAB)
    assert [name for name in gitlab if "DEPENDENCIES_TOKEN" in str(gitlab[name])] == ["propose"]
    assert not re.search(r"dev\.py|pip", str(gitlab["propose"]["script"]))


@pytest.mark.parametrize(("path", "job", "minutes"), [(CHECK, "test", 90), (DEPENDENCIES, "lock", 350)])
def test_a_job_of_github_with_tests_has_the_time_for_them(path: str, job: str, minutes: int) -> None:
    assert _yaml(path)["jobs"][job]["timeout-minutes"] == minutes


def test_a_job_of_gitlab_with_tests_has_the_time_for_them() -> None:
    """GitLab takes no `timeout` from `default`, and gives a job an hour."""
    gitlab = _yaml(GITLAB)
    assert "timeout" not in gitlab["default"]
    jobs = {name: gitlab[gitlab[name]["extends"]] | gitlab[name] for name in ("test", "lock")}
    assert {name: job["timeout"] for name, job in jobs.items()} == {"test": "90 minutes", "lock": "350 minutes"}


def test_both_hosts_ask_the_same() -> None:
    if not ((ROOT / ".github" / "ISSUE_TEMPLATE").exists() and (ROOT / ".gitlab").exists()):
        pytest.skip("there is one host")
    asked = {path.name: path.read_text() for path in ROOT.glob(".gitlab/issue_templates/*.md")}
    assert len(asked) == 2
    of_github = {path.name: path.read_text() for path in ROOT.glob(".github/ISSUE_TEMPLATE/*.md")}
    assert {
        name: re.sub(r"\A---\n.*?\n---\n\n", "", text, flags=re.DOTALL) for name, text in of_github.items()
    } == asked
    of_changes = ROOT / ".gitlab" / "merge_request_templates" / "Default.md"
    assert (ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md").read_text() == of_changes.read_text()


@pytest.mark.parametrize(("hook", "left"), [("format", 'import os\n\nprint("x")\n'), ("lint", BADLY_FORMATTED)])
def test_a_commit_is_looked_at_by_the_checkouts_own_ruff(hook: str, left: str, tmp_path: Path) -> None:
    """pre-commit refuses a commit when a hook fails or changes a file."""
    repositories = _yaml(HOOKS)["repos"]
    hooks = {each["id"]: each for repository in repositories for each in repository["hooks"]}
    assert {repository["repo"] for repository in repositories} == {"local"}
    assert {each["language"] for each in hooks.values()} == {"system"}
    tool, *arguments = hooks[hook]["entry"].split()
    assert tool == ".venv/bin/ruff"
    (tmp_path / "new.py").write_text(BADLY_FORMATTED)
    configured = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    ran = subprocess.run([BIN / "ruff", *arguments, *configured, tmp_path / "new.py"], capture_output=True, text=True)
    assert (tmp_path / "new.py").read_text() == left
    assert ran.returncode == (0 if hook == "format" else 1)


def test_the_page_for_whoever_changes_the_code_is_one_page_and_names_what_exists() -> None:
    page = _ours(PAGE)
    assert len(page.splitlines()) <= 60
    paths = re.findall(r"`((?:services|shared|tests|docs)/[^`]+|[\w.-]+\.(?:toml|lock))`", page)
    shapes = [path.replace("services/*", "tests/patterns/*") for path in paths]  # there may be no service yet
    assert [path for path in shapes if not [*ROOT.glob(path)]] == []


@pytest.mark.parametrize("page", [PAGE, CONTRIBUTING])
def test_such_a_page_names_verbs_that_exist(page: str) -> None:
    verbs = {*re.findall(r"^  (?:stop SERVICE, )?([\w-]+)", USAGE, re.MULTILINE)}
    named = re.findall(r"python3 dev\.py ([\w-]+)", _ours(page))
    assert named
    assert {*named} - verbs - {"help"} == set()


def _ours(path: str) -> str:
    """Its text. Skips the test where it is not the template's."""
    text = (ROOT / path).read_text() if (ROOT / path).exists() else ""
    if not text.startswith(BEGINS[path]):
        pytest.skip(f"{path} is not the template's")
    return text


def _yaml(path: str) -> Any:
    return yaml.safe_load(_ours(path))
