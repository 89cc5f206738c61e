"""Where the template is that this clone was made from: a path or URL, remembered in git's settings of a working copy.

It is no remote of git: one may have that name already, and by a remote the template's tags would come, while a tag here
is a release of the team's own.
"""

from __future__ import annotations

import re
from pathlib import Path

from shared.dev.git import git, ran
from shared.dev.stages import StageFailed

_SETTING = "onefold.template"


def source_of(root: Path, given: str | None) -> str:
    """given: by default, what is remembered. Raises StageFailed when nothing is."""
    if given is not None:
        return str(Path(given).resolve()) if Path(given).exists() else given
    if known := ran(root, "config", "--get", _SETTING).stdout.strip():
        return known
    raise StageFailed("it is not known where the template is", "name it once: --from PATH-OR-URL")


def remember_source(root: Path, source: str) -> None:
    git(root, "config", _SETTING, source)


def shown(source: str) -> str:
    """Without the name and the password that a URL may have."""
    return re.sub(r"(?<=://)[^/@]+@", "", source)
