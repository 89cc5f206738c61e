"""Where this checkout is, which services it has, and what they declare: their folders say so, no list does."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from shared.domain.errors import OnefoldError

CHECKOUT = Path(__file__).parents[2]


def found_services(checkout: Path = CHECKOUT, having: str = "app.py") -> list[str]:
    """The folders of `services` with the file `having`, sorted; by default those that have workers."""
    return sorted(file.parent.name for file in (checkout / "services").glob(f"*/{having}"))


class Undeclared(OnefoldError):
    """A module of a service lacks the name by which others find what it declares.

    Operator action: give the module that name.
    """


def declared(package: str, module: str, name: str) -> Any:
    """What a module of a service's package calls `name`: TOPOLOGY, DECIDER, … Raises Undeclared."""
    found = import_module(f"{package}.{module}")
    if not hasattr(found, name):
        file = f"{module.replace('.', '/')}.py"
        raise Undeclared(
            f"{package}.{module} has no {name}; fix: call it so in {file}, or delete the file if it has none"
        )
    return getattr(found, name)
