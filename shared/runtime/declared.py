"""What services declare in their modules, found by name."""

from __future__ import annotations

from importlib import import_module
from traceback import extract_tb
from typing import Any

from shared.domain.errors import OnefoldError
from shared.runtime.checkout import found_services


class Undeclared(OnefoldError):
    """A service lacks the module, or the module the name, by which others find what it declares, or declares what can't
    be.

    Operator action: give it that module, and the module that name, or do what the message says.
    """


def declared(package: str, module: str, name: str) -> Any:
    """What a module of a service's package calls `name`, as SERVICE in `service.py`. Raises Undeclared."""
    path = f"{package}.{module}"
    try:
        found = import_module(path)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{path}.".startswith(f"{error.name}."):
            raise Undeclared(f"there is no {path}; fix: write {module}.py, with {name} in it") from None
        said = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}; fix: mend it there"
        raise Undeclared(f"{_place(error, package) or path}: {said}") from error
    if not hasattr(found, name):
        raise Undeclared(f"{path} has no {name}; fix: call it so in {module}.py")
    return getattr(found, name)


def _place(error: Exception, package: str) -> str | None:
    """Of the last line of the package's that led to it, such as `…/topology.py:12`."""
    places = [f"{frame.filename}:{frame.lineno}" for frame in extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append(f"{error.filename}:{error.lineno}")
    return next((place for place in reversed(places) if f"/{package.replace('.', '/')}/" in place), None)


def declared_by(service: str, module: str) -> Any:
    """What the service's module of this name declares, as SINKS in `sinks.py`. Raises Undeclared."""
    if service not in (having := found_services(having=f"{module}.py")):
        raise Undeclared(f"{service} has no {module}; fix: name one of: {', '.join(having) or 'none has'}")
    return declared(f"services.{service}", module, module.upper())
