"""Whether the lock files hold what pyproject.toml asks for: a check that needs neither uv nor the network."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from shared.dev.locks import LOCKS, OWN
from shared.dev.stages import StageFailed
from shared.runtime.checkout import CHECKOUT

_PIN = re.compile(r"^([\w.-]+)(?:==| @ )(\S+)", re.MULTILINE)


def unlocked(root: Path) -> list[str]:
    """What each lock lacks, such as `worker.lock has pydantic 2.14.3, and pyproject.toml wants pydantic>=3`.

    Raises StageFailed.
    """
    project, own = (_read(root / file) for file in ("pyproject.toml", OWN))
    tables = {
        "--extra": project["project"]["optional-dependencies"],
        "--group": project["dependency-groups"],
        f"--group={OWN}": own["dependency-groups"],
    }
    return [
        line for lock, selection in LOCKS.items() for line in _unlocked(root, lock, list(_asked(tables, selection)))
    ]


def _read(file: Path) -> Any:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise StageFailed(f"{file} can't be read as TOML: {error}", "correct it, or take it back from git") from None


def _asked(tables: Mapping[str, Mapping[str, Any]], selection: tuple[str, ...]) -> Iterator[Requirement]:
    for table, name in (re.split(r"[=:](?=\w+$)", each) for each in selection):
        yield from _entries(tables[table], name)


def _entries(table: Mapping[str, Any], name: str) -> Iterator[Requirement]:
    """Those of the groups that it includes, too; without what is not for this interpreter and system."""
    for each in table[name]:
        if isinstance(each, Mapping):
            yield from _entries(table, each["include-group"])
        elif (found := Requirement(each)).marker is None or found.marker.evaluate():
            yield found


def _unlocked(root: Path, lock: str, asked: list[Requirement]) -> Iterator[str]:
    file = root / "requirements" / f"{lock}.lock"
    pins = {canonicalize_name(name): version for name, version in _PIN.findall(file.read_text())}
    for each in asked:
        found = pins.get(canonicalize_name(each.name))
        if found is None or (each.url is None and not each.specifier.contains(found, prereleases=True)):
            yield f"{file.name} has {each.name} {found or 'not at all'}, and pyproject.toml wants {each}"


def main() -> None:
    """For `check`: exits with 1 when a lock is not as pyproject.toml says."""
    try:
        found = unlocked(CHECKOUT)
    except StageFailed as failure:
        sys.exit(str(failure))
    print("\n".join(found) or f"requirements/*.lock hold what pyproject.toml asks for, in {len(LOCKS)} files")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
