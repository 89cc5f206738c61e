"""What `new-service` may call the copy: a noun that is legal as a name wherever it stands, and not taken."""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

from shared.dev.additions import composed_in
from shared.dev.renaming import own_wire_names, wire_names
from shared.dev.stages import StageFailed
from shared.runtime.checkout import found_services

_NAME = re.compile(r"[a-z][a-z0-9]{0,31}")
# The first segments of all paths.
_OWN_ROUTES = ("changes", "cluster", "docs", "healthz", "metrics", "readyz", "stories", "ui", "versions")
ENGINE_TABLES = ("parked", "chapters")  # as in shared/topology, which `replay` does not import
_OPERATORS_SCOPES = "operations"


@dataclass(frozen=True, slots=True)
class Noun:
    """`plural` names a service, its topics and routes; `singular` its messages and classes (None: only views)."""

    plural: str
    singular: str | None

    @property
    def words(self) -> tuple[str, ...]:
        """In the order of `plural`, `singular`."""
        return (self.plural,) if self.singular is None else (self.plural, self.singular)


def new_words(root: Path, like: str, name: str, singular: str | None) -> dict[str, str]:
    """By each word of `like`, what the copy says instead: {"orders": "bookings", "order": "booking"}.

    singular: of `name`, if that is not `name` without its s. Raises StageFailed when the name cannot be used.
    """
    old = noun_of(root, like)
    words = free_words(root, old, name, singular)
    _check_renamed(root, old)
    return words


def free_words(root: Path, old: Noun, name: str, singular: str | None) -> dict[str, str]:
    """As `new_words`, of a noun."""
    _check_free(root, Noun(_legal(name), None))
    _check_free(root, _new_noun(name, singular, old))
    return same_words(old, name, singular)


def same_words(old: Noun, name: str, singular: str | None) -> dict[str, str]:
    """As `free_words`, of a copy that a clone has: its name was free when it was made, and topics begin with it now."""
    return dict(zip(old.words, _new_noun(_legal(name), singular, old).words, strict=True))


def _check_renamed(root: Path, old: Noun) -> None:
    kept = own_wire_names(root / "services" / old.plural) - {*old.words}
    if old.singular and kept:
        raise StageFailed(
            f"{old.plural} has messages called {', '.join(sorted(kept))}, and its copy would have the same",
            f"let the TYPE of each of its commands and events begin with {old.singular}.",
        )


def noun_of(root: Path, service: str) -> Noun:
    if service not in found_services(root):
        raise StageFailed(f"no service is called {service}", f"--like one of: {', '.join(found_services(root))}")
    folder = root / "services" / service
    singulars = wire_names(folder / "domain" / "commands.py") or wire_names(folder / "service.py")
    return Noun(service, singulars[0] if singulars else None)


def _new_noun(name: str, singular: str | None, old: Noun) -> Noun:
    if old.singular is None:
        if singular is not None:
            raise StageFailed(f"{old.plural} has only views: nothing in it has a singular name", "leave out --singular")
        return Noun(name, None)
    one = singular or _singular_of(name)
    if one is None or one == name:
        raise StageFailed(f"what is the singular of {name}?", f"give --singular WORD, other than {name}")
    return Noun(name, _legal(one))


def _legal(word: str) -> str:
    if not _NAME.fullmatch(word):
        shape = "use one word of lower-case letters and digits, such as bookings: topic names begin with it, too"
        raise StageFailed(f"{word!r} is not a name for a service", shape)
    return word


def _singular_of(name: str) -> str | None:
    """`bookings` → `booking`, `deliveries` → `delivery`, `boxes` → `box`; None when it is not plain."""
    for ending, one in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh")):
        if name.endswith(ending):
            return name.removesuffix(ending) + one
    return name.removesuffix("s") if name.endswith("s") and not name.endswith(("ss", "us", "is", "uses")) else None


def _check_free(root: Path, new: Noun) -> None:
    if new.plural in _OWN_ROUTES:
        raise StageFailed(f"{new.plural} is reserved: every worker answers at /{new.plural}", "choose another name")
    if new.plural == _OPERATORS_SCOPES:
        raise StageFailed(f"{new.plural} is reserved: operators have its scopes", "choose another name")
    if new.plural in ENGINE_TABLES:
        raise StageFailed(f"{new.plural} is reserved: the engine keeps a table of that name", "choose another name")
    python = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
    packages = {*sys.stdlib_module_names, *packages_distributions(), *(path.name for path in root.iterdir()), "onefold"}
    for word in new.words:
        if word in python or (word == new.plural and word in packages):
            other = "choose another name" if word == new.plural else "choose another name, or another --singular"
            raise StageFailed(f"{word} is reserved: it is a name of Python or of a package", other)
    for service in found_services(root, having="__init__.py"):
        if taken := {*new.words} & {service, *own_wire_names(root / "services" / service)}:
            raise StageFailed(f"{taken.pop()} is taken: services/{service} or its messages", "choose another name")
    for folder in (f"services/{new.plural}", f"tests/unit/{new.plural}"):
        if (root / folder).exists():
            raise StageFailed(f"{new.plural} is taken: {folder} exists", "choose another name")
    for module in sorted(root.glob("services/*/*.py")):
        if re.search(rf'"{new.plural}[.-]', module.read_text()):
            topics = f"topics of {new.plural} are named in {module.relative_to(root)}"
            raise StageFailed(f"{new.plural} is taken: {topics}", "choose another name")
    if file := composed_in(root, new.plural):
        raise StageFailed(f"{new.plural} is taken: it is in {file}", "choose another name")
