"""Commands, packages and rules of a team have files of its own: none of the template's is edited for them."""

from __future__ import annotations

import pytest

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
