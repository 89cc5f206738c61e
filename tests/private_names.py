"""Whether a package's own code still has the names that are used here although it does not document them."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Collection, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

_PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def is_there(owner: object, name: str) -> bool:
    """In the class, annotated there, or set on its instances."""
    return hasattr(owner, name) or name in _annotated(owner) or _is_assigned(owner, name)


def overrides(kind: type, own: Collection[tuple[str, str]] = ()) -> Iterator[tuple[str, Any, Any]]:
    """The name, the method of `kind`, and the base's that it replaces, of each that a base outside this project calls.

    own: pairs of class and method that mean something else here.
    """
    for name, method in vars(kind).items():
        base = _inherited(kind, name)
        if inspect.isfunction(method) and name != "__init__" and (kind.__name__, name) not in own and base is not None:
            yield name, method, base


def takes(method: Any, base: Any) -> bool:
    """Whether every call that suits `base` suits `method`."""
    own = inspect.signature(method).parameters.values()
    if any(parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) for parameter in own):
        return True
    return [parameter.name for parameter in own] == [p.name for p in inspect.signature(base).parameters.values()]


def is_pinned(package: str) -> bool:
    """Whether pyproject.toml names the installed version, and no other, wherever it names the package."""
    extras = tomllib.loads(_PROJECT.read_text())["project"]["optional-dependencies"].values()
    pins = [re.sub(r"\[.*\]", "", pin) for extra in extras for pin in extra]
    return {pin for pin in pins if re.match(rf"{package}\b(?!-)", pin)} == {f"{package}=={version(package)}"}


def _annotated(owner: object) -> set[str]:
    return {name for kind in inspect.getmro(cast(type, owner)) for name in getattr(kind, "__annotations__", {})}


def _is_assigned(owner: object, name: str) -> bool:
    return re.search(rf"self\.{name}( =|: )", inspect.getsource(cast(type, owner))) is not None


def _inherited(kind: type, name: str) -> Any:
    found = (vars(base)[name] for base in kind.__mro__[1:] if name in vars(base))
    return next((method for method in found if callable(method)), None)
