"""What a repository has beside its code is what its hosts publish, and says what is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev import USAGE
from shared.runtime.jars import user_cache

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
BADLY_FORMATTED = "import os\nprint( 'x' )\n"


def published(schema: str, *files: Path, transform: str | None = None) -> None:
    """Raises AssertionError with what the schema does not allow. schema: the name of one of check-jsonschema's own."""
    transformed = ["--data-transform", transform] if transform else []
    command = [str(BIN / "check-jsonschema"), "--builtin-schema", schema, *transformed, *map(str, files)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_what_github_reads_is_as_it_publishes() -> None:
    assert len(WORKFLOWS) == 2
    published("vendor.github-workflows", *WORKFLOWS)
    published("custom.github-workflows-require-timeout", *WORKFLOWS)
    published("vendor.dependabot", ROOT / ".github" / "dependabot.yml")


def test_what_gitlab_reads_is_as_it_publishes() -> None:
    published("vendor.gitlab-ci", ROOT / ".gitlab-ci.yml", transform="gitlab-ci")


def test_compose_files_are_as_the_specification_says() -> None:
    known = (ROOT / "docker-compose.yml", ROOT / "compose.dev.yml", ROOT / "deploy" / "containers.yml")
    services = (*ROOT.glob("services/compose.yml"), *ROOT.glob("services/*/deploy/[cds]*.yml"))
    published("vendor.compose-spec", *known, *services)  # the others have tags


def test_both_hosts_run_what_the_readme_says() -> None:
    (test,) = re.findall(r"^python3 dev\.py test$", (ROOT / "README.md").read_text(), re.MULTILINE)
    github = _yaml(".github/workflows/check.yml")["jobs"]["test"]["steps"]
    assert [step["run"] for step in github if "run" in step] == [test]
    assert _yaml(".gitlab-ci.yml")["test"]["script"] == [test]
    assert f"exec {test}\n" in (ROOT / ".ci" / "run").read_text()


def test_both_hosts_keep_what_dev_py_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/of-ci")
    (step,) = (
        s for s in _yaml(".github/workflows/check.yml")["jobs"]["test"]["steps"] if "cache@" in s.get("uses", "")
    )
    assert [path.replace("~", "/home/of-ci") for path in step["with"]["path"].split()] == [
        str(user_cache()),
        "/home/of-ci/.cache/pip",
    ]
    gitlab = _yaml(".gitlab-ci.yml")
    assert gitlab["variables"]["XDG_CACHE_HOME"] == f"$CI_PROJECT_DIR/{gitlab['.with-packages']['cache']['paths'][0]}"
    keys = [*gitlab[".with-packages"]["cache"]["key"]["files"], *re.findall(r"'(.+?)'", step["with"]["key"])]
    assert [key for key in keys if not [*ROOT.glob(key)]] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_to_a_commit(workflow: Path) -> None:
    uses = re.findall(r"uses: (.+)", workflow.read_text())
    assert uses
    assert [each for each in uses if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_what_may_write_to_the_repository_runs_nothing_that_was_fetched() -> None:
    jobs = _yaml(".github/workflows/dependencies.yml")["jobs"]
    writing = [name for name, job in jobs.items() if "write" in (job.get("permissions") or {}).values()]
    assert writing == ["propose"]
    gitlab = _yaml(".gitlab-ci.yml")
    assert [name for name in gitlab if "DEPENDENCIES_TOKEN" in str(gitlab[name])] == writing
    assert not re.search(r"dev\.py|pip|uv", str([step.get("run") for step in jobs["propose"]["steps"][:-1]]))
    assert not re.search(r"dev\.py|pip", str(gitlab["propose"]["script"]))


def test_a_job_with_tests_has_the_time_for_them() -> None:
    """GitLab takes no `timeout` from `default`, and gives a job an hour."""
    gitlab = _yaml(".gitlab-ci.yml")
    assert "timeout" not in gitlab["default"]
    jobs = {name: gitlab[gitlab[name]["extends"]] | gitlab[name] for name in ("test", "lock")}
    assert {name: job["timeout"] for name, job in jobs.items()} == {"test": "90 minutes", "lock": "350 minutes"}
    github = [_yaml(f".github/workflows/{name}.yml")["jobs"] for name in ("check", "dependencies")]
    assert [jobs[name]["timeout-minutes"] for jobs, name in zip(github, ("test", "lock"), strict=True)] == [90, 350]


def test_both_hosts_ask_the_same() -> None:
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
    hooks = {
        each["id"]: each for repository in _yaml(".pre-commit-config.yaml")["repos"] for each in repository["hooks"]
    }
    assert {repository["repo"] for repository in _yaml(".pre-commit-config.yaml")["repos"]} == {"local"}
    assert {each["language"] for each in hooks.values()} == {"system"}
    tool, *arguments = hooks[hook]["entry"].split()
    assert tool == ".venv/bin/ruff"
    (tmp_path / "new.py").write_text(BADLY_FORMATTED)
    configured = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    ran = subprocess.run([BIN / "ruff", *arguments, *configured, tmp_path / "new.py"], capture_output=True, text=True)
    assert (tmp_path / "new.py").read_text() == left
    assert ran.returncode == (0 if hook == "format" else 1)


def test_the_page_for_whoever_changes_the_code_is_one_page_and_names_what_exists() -> None:
    page = (ROOT / "AGENTS.md").read_text()
    assert len(page.splitlines()) <= 60
    verbs = {*re.findall(r"^  (?:stop SERVICE, )?([\w-]+)", USAGE, re.MULTILINE)}
    named = re.findall(r"python3 dev\.py ([\w-]+)", page + (ROOT / "CONTRIBUTING.md").read_text())
    assert named
    assert {*named} - verbs - {"help"} == set()
    paths = re.findall(r"`((?:services|shared|tests|docs)/[^`]+|[\w.-]+\.(?:toml|lock))`", page)
    shapes = [path.replace("services/*", "tests/patterns/*") for path in paths]  # there may be no service yet
    assert [path for path in shapes if not [*ROOT.glob(path)]] == []


def test_every_path_that_is_not_the_templates_exists() -> None:
    paths = tomllib.loads((ROOT / "onefold.toml").read_text())["paths"]
    listed = [*paths["yours"], *paths["both"]]
    assert [path for path in listed if not [*ROOT.glob(path.replace("SERVICE", "*"))]] == []


def _yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())
