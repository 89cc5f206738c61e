"""A template with releases and clones of it, as git repositories, and what a clone has to be after an upgrade."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from shared.dev.record import FILE, recorded, set_release
from shared.dev.replay import redo
from shared.runtime.checkout import found_services
from tests.scaffold.checkout import Checkout

OLD = ("v1.0.0", "v1.0.1", "v1.0.2", "v1.0.3", "v1.0.4")
NEW = "v1.1.0"
REMOVED = "bench/passing.py"
# What each release appends a line to, and the file that it adds; the last one does so to every service, too.
FIXED = {
    OLD[1]: ("services/accounts/domain/decide.py", "shared/domain/ids.py", "bench/cli.py", "bench/first.py"),
    OLD[2]: ("services/accounts/topology.py", "bench/load.py"),
    OLD[3]: ("tests/patterns/things/domain/decide.py", "shared/domain/ids.py"),
    OLD[4]: ("services/accounts/domain/state.py", "bench/cli.py"),
    NEW: (
        "tests/patterns/things/api.py",
        "tests/unit/accounts/test_decide.py",
        "shared/domain/ids.py",
        "bench/cli.py",
        "bench/second.py",
    ),
}
_WHO = ("-c", "user.name=x", "-c", "user.email=x@example.org")

Files = Mapping[str, bytes]


def commit(checkout: Checkout, message: str = "all of it") -> None:
    checkout.run("git", "add", "-A")
    checkout.run("git", *_WHO, "commit", "-q", "--allow-empty", "-m", message)


def release(checkout: Checkout) -> None:
    """Makes a template with six releases of a copy of this checkout."""
    record = checkout.root / FILE
    record.write_text(re.sub(r"\n\[\[done\]\][\s\S]*", "", record.read_text()))
    _append(checkout, REMOVED, '"""It goes in the second release."""')
    checkout.run("git", "init", "-q", "-b", "main", ".")
    _tag(checkout, OLD[0])
    for tag, files in FIXED.items():
        apis = [f"services/{each}/api.py" for each in found_services(checkout.root) if tag == NEW]
        for file in (*files, *apis):
            _append(checkout, file, f"# fixed in {tag}")
        _append(checkout, "docs/CHANGELOG.md", f"## {tag}\n\n- Formats: none.\n- To do: what {tag} asks for.")
        (checkout.root / REMOVED).unlink(missing_ok=True)
        _tag(checkout, tag)


def clone(template: Checkout, tag: str, folder: Path) -> Checkout:
    """It begins with the release, has its history, and no remote."""
    template.run("git", "clone", "-q", template.root, folder)
    cloned = Checkout(folder)
    cloned.run("git", "switch", "-q", "-C", "main", tag)
    cloned.run("git", "remote", "remove", "origin")
    return cloned


def tracked(checkout: Checkout) -> dict[str, bytes]:
    """The content of each file that git knows, by its path."""
    found = checkout.run("git", "ls-files", "-z").split("\0")
    return {path: (checkout.root / path).read_bytes() for path in found if path}


def check_upgraded(cloned: Checkout, before: Files, template: Checkout, tag: str, scratch: Path) -> None:
    """Each file is as the only side that changed it has it. Where both did, it has the clone's first line, and the fix.

    before: the clone's files. tag: the release that it began with.
    """
    base, new = (_made_like(cloned, template, each, scratch / each) for each in (tag, NEW))
    merged = tracked(cloned)
    folders = {str(folder) for path in before for folder in Path(path).parents}
    for path in (base | new).keys() | before.keys():
        was, ours, theirs, is_now = (files.get(path) for files in (base, before, new, merged))
        if was is None and str(Path(path).parent) not in folders:
            assert is_now is None, f"{path} is new in a folder that was deleted"
        elif was == ours:
            assert is_now == theirs, f"{path} was changed by the release only"
        elif ours is None or was == theirs:
            assert is_now == ours, f"{path} was changed by the team only"
        elif path != FILE:
            assert theirs is not None
            assert is_now is not None
            assert is_now.splitlines()[0] == ours.splitlines()[0] != theirs.splitlines()[0]
            assert is_now.splitlines()[-1] == theirs.splitlines()[-1] != ours.splitlines()[-1]
    assert recorded(cloned.root).release == NEW


def _made_like(cloned: Checkout, template: Checkout, tag: str, folder: Path) -> dict[str, bytes]:
    """The files of a release with what was done to the clone."""
    pristine = clone(template, tag, folder)
    for step in recorded(cloned.root).steps:
        redo(pristine.root, step)
    pristine.run("git", "add", "-A")
    return tracked(pristine)


def _append(checkout: Checkout, file: str, line: str) -> None:
    path = checkout.root / file
    apart = "\n\n" if path.exists() else ""  # as ruff formats it
    with path.open("a") as text:
        text.write(f"{apart}{line}\n")


def _tag(checkout: Checkout, tag: str) -> None:
    set_release(checkout.root, tag)
    commit(checkout, tag)
    checkout.run("git", "tag", tag)
