"""onefold.toml: which release this clone began with, which paths are whose, and what `dev.py` has done to it since."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.dev.stages import StageFailed
from shared.runtime.checkout import found_services

FILE = "onefold.toml"
_RELEASE = re.compile(r'^release = "[^"]*"', re.MULTILINE)
_TAG = re.compile(r"v(\d+)\.(\d+)\.(\d+)")

Step = Mapping[str, str]
"""A `verb` of dev.py and its arguments by their names."""


@dataclass(frozen=True, slots=True)
class Record:
    """release: the template's tag. steps: in the order in which they were done. own: paths that a team edits."""

    release: str
    steps: tuple[Step, ...]
    own: tuple[str, ...]


def recorded(root: Path, text: str | None = None) -> Record:
    """text: by default, what is in the file. Raises StageFailed when it does not say it."""
    try:
        found = tomllib.loads(text or (root / FILE).read_text())
        own = [*found["paths"]["yours"], *found["paths"]["both"]]
        version_of(found["release"])
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        lost = f"{FILE} does not say what this clone began with: {type(error).__name__}, {error}"
        raise StageFailed(lost, f"bring {FILE} back: `git log -- {FILE}`") from None
    return Record(found["release"], tuple(found.get("done", ())), _paths(root, own))


def remember(root: Path, verb: str, **arguments: str | None) -> None:
    """Notes what was done, for `upgrade` to do it again."""
    step = {"verb": verb} | {name: value for name, value in arguments.items() if value is not None}
    with (root / FILE).open("a") as file:
        file.write("\n[[done]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in step.items()))


def set_release(root: Path, tag: str) -> None:
    """Raises StageFailed when the file has no line for it."""
    file = root / FILE
    text, times = _RELEASE.subn(f'release = "{tag}"', file.read_text() if file.exists() else "", count=1)
    if not times:
        raise StageFailed(f'{tag} has no line `release = "…"` in its {FILE}', "name another release")
    file.write_text(text)


def version_of(tag: str) -> tuple[int, ...]:
    """`v1.2.3` as (1, 2, 3). Raises StageFailed if it is no tag of a release."""
    if not (found := _TAG.fullmatch(tag)):
        raise StageFailed(f"{tag} is not a release", "name one as v1.2.3")
    return tuple(map(int, found.groups()))


def _paths(root: Path, patterns: Sequence[str]) -> tuple[str, ...]:
    services = found_services(root, having="__init__.py") or [""]
    return tuple(dict.fromkeys(pattern.replace("SERVICE", each) for pattern in patterns for each in services))
