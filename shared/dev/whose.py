"""Which of the template's files this clone has edited: onefold.toml says which paths are whose.

They are compared with the release that the clone began with, in which what `dev.py` has done since is done, too. Its
tree is made once, and kept as a ref.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.dev.git import git, ran
from shared.dev.record import FILE, recorded
from shared.dev.stages import StageFailed
from shared.dev.template import remember_source, source_of
from shared.dev.trees import apart, made_at, release_at
from shared.runtime.checkout import CHECKOUT


def edited(root: Path) -> list[str]:
    """What is committed; files that the team has added or deleted are not among them.

    Raises StageFailed when this clone does not have the release.
    """
    record = recorded(root, ran(root, "show", f"HEAD:./{FILE}").stdout)  # of what is committed, too
    if not (pristine := _tree_at(root, release_at(record.release))):
        fix = "python3 dev.py whose --from PATH-OR-URL, of the template"
        raise StageFailed(f"this clone does not have {record.release}, to compare with", fix)
    ref = made_at(pristine, record.steps)
    if not _tree_at(root, ref):
        with apart(root) as trees:
            trees.take(record.release)
            trees.keep(trees.alike([record.release], record.steps).trees[0], ref)
    changed = git(root, "diff-tree", "-r", "-z", "--name-only", "--diff-filter=MT", f"{ref}^{{tree}}", "HEAD:./")
    return [path for path in changed.split("\0") if path and not _is_in(path, record.own)]


def fetch(root: Path, source: str) -> None:
    """Gets the release to compare with, as `upgrade` does. source: a path or URL of the template."""
    source, release = source_of(root, source), recorded(root).release
    with apart(root) as trees:
        trees.fetch(source, release)
        trees.keep_release(release)
    remember_source(root, source)


def _tree_at(root: Path, ref: str) -> str:
    """Empty if there is no such ref."""
    return ran(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{tree}}").stdout.strip()


def _is_in(path: str, paths: Sequence[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in paths)


def main() -> None:
    """One line, for `check`: an edit of the template's own files is a warning, as it is a conflict only later."""
    try:
        found = edited(CHECKOUT)
    except StageFailed as failure:
        print(f"not compared: {failure.problem}; fix: {failure.fix}")
        return
    except OSError as error:
        print(f"not compared: {error}")
        return
    some = f"{len(found)} of the template's files are edited here: `python3 dev.py whose`"
    print(some if found else f"as {FILE} says")


if __name__ == "__main__":
    main()
