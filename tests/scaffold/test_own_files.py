"""Commands, packages and rules of a team have files of its own: none of the template's is edited for them."""

from __future__ import annotations

import re
import shutil

import pytest

from shared.dev.locks import OWN
from shared.dev.record import FILE
from tests.scaffold.checkout import BIN, Checkout
from tests.scaffold.releases import commit

COMMANDS = '''\
"""Commands of our own."""

import json
from urllib.parse import quote

import typer

from {topology} import TOPOLOGY

cli = typer.Typer()


@cli.command()
def announce(context: typer.Context, name: str) -> None:
    """Say who is there."""
    print(json.dumps([TOPOLOGY.service, quote(name), context.obj()]))
'''
RULES = """
[tool.ruff]
extend = "../pyproject.toml"
src = [".."]
lint.extend-select = ["FIX"]

[tool.importlinter]
root_packages = ["services"]
include_external_packages = true

[[tool.importlinter.contracts]]
name = "commands quote nothing"
type = "forbidden"
source_modules = ["services.commands"]
forbidden_modules = ["urllib"]
"""
BROKEN = {  # by what is said of it
    "import typer\nfrom services import nowhere\n": "services/commands.py:2 has an error",
    "def announce(:\n": "services/commands.py has an error",
    "import typer\n": "has no attribute 'cli'",
    "cli = None\n": "'NoneType' object",
}
HOSTS = (".ci", ".devcontainer", ".github", ".gitlab")


@pytest.mark.long  # in short, each file by itself, in tests/unit/dev
@pytest.mark.slow
def test_a_team_adds_commands_packages_and_rules_without_an_edit_of_the_templates_files(checkout: Checkout) -> None:
    record = checkout.root / FILE
    record.write_text(record.read_text().partition("\n[[done]]")[0] + "\n")
    checkout.run("git", "init", "-q", "-b", "main", ".")
    commit(checkout)
    checkout.run("git", "tag", "v1.0.0")
    checkout.verb("new-service", "parcels", "--kind", "aggregate")
    (checkout.root / "services" / "commands.py").write_text(COMMANDS.format(topology="services.parcels.topology"))
    own = checkout.root / "services" / "pyproject.toml"
    own.write_text(own.read_text().replace("worker = []", 'worker = ["never-locked"]') + RULES)
    commit(checkout)

    assert checkout.verb("announce", "Ann B") == '["parcels", "Ann%20B", {}]\n'
    assert "announce" in checkout.verb("--help")
    assert "worker.lock has never-locked not at all" in checkout.run("python", "-m", "shared.dev.locked", expect=1)
    checkout.run(BIN / "lint-imports", "--no-logo", "--no-cache")
    doors = "lint-imports", "--no-logo", "--config=services/pyproject.toml"
    assert str(doors) in checkout.run("python", "-c", "from shared.dev import checks; print(checks._STATIC)")
    assert "commands quote nothing BROKEN" in checkout.run(BIN / doors[0], *doors[1:], "--no-cache", expect=1)
    checkout.run(BIN / "ruff", "check", "--no-cache", "services")
    with (checkout.root / "services" / "parcels" / "api.py").open("a") as api:
        api.write("# TODO: ours\n")
    assert "FIX002" in checkout.run(BIN / "ruff", "check", "--no-cache", "services", expect=1)
    assert checkout.verb("whose", "--from", ".") == ""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_a_teams_own_may_be_otherwise_or_gone(checkout: Checkout) -> None:
    """Its hosts and pages, how much memory a service has and on which port, and what else runs and is scraped."""
    for name in ("parcels", "crates"):
        checkout.verb("new-service", name, "--kind", "aggregate")
    for folder in (*HOSTS, "services/crates/deploy"):
        shutil.rmtree(checkout.root / folder)
    (checkout.root / ".gitlab-ci.yml").unlink()
    workflows = checkout.root / ".github" / "workflows"
    workflows.mkdir(parents=True)
    (workflows / "ours.yml").write_text(
        "on: push\njobs: {ours: {runs-on: ours, steps: [{uses: actions/checkout@v5}]}}\n"
    )
    for page in ("AGENTS.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"):
        (checkout.root / page).write_text("# Ours\n\nAsk [us](mailto:us@example.org).\n")
    listed = {"compose.yml": "  - mail/compose.yml\n", "prometheus.yml": "  - {job_name: mail, static_configs: []}\n"}
    for file, line in listed.items():
        path = checkout.root / "services" / file
        path.write_text(
            "".join(each for each in path.read_text().splitlines(keepends=True) if "crates" not in each) + line
        )
    compose = checkout.root / "services" / "parcels" / "deploy" / "compose.yml"
    composed = re.sub(r"(?<=_PORTS:-)\d+-\d+", "8300", compose.read_text())
    compose.write_text(composed.replace("    ports:", "    mem_limit: 1g\n    ports:"))
    assert "boxes, on host ports 8301-8310\n" in checkout.verb("new-service", "boxes", "--kind", "aggregate")
    readme = ["tests/readme"] if (checkout.root / "tests" / "readme").exists() else []
    fast = "not (broker or slow or spark or long or compose)"
    checkout.pytest("-m", fast, "tests/architecture", "tests/unit/dev/test_observability.py", *readme)


def test_a_broken_file_of_a_teams_costs_it_only_what_is_in_that_file(checkout: Checkout) -> None:
    for text, said in BROKEN.items():
        (checkout.root / "services" / "commands.py").write_text(text)
        told = checkout.verb("down")
        assert said in told
        assert "so verbs of your own are left out" in told
        assert "\n  fix: correct it\n" in told
        assert told.endswith("nothing was running\n")
    own = checkout.root / OWN
    for break_ in (lambda: own.write_text("[tool.ruff\n"), own.unlink):
        break_()
        assert f"{own} can't be read as TOML: " in checkout.run("python", "-m", "shared.dev.locked", expect=1)
        checks = checkout.run("python", "-c", "from shared.dev import checks; print(checks._STATIC)")
        assert "python3 dev.py lock" in checks
