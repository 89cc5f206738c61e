"""`upgrade`: merges a newer release of the template into this clone, on a branch.

Three trees are merged: the release that the clone began with, the new one, and the clone. What `dev.py` has done to the
clone is first done to the other two, each by its own code: so the clone differs from the first by its team's edits
alone, and fixes reach copies of services.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from shared.dev.git import check_clean, check_merges, git, ran
from shared.dev.record import Record, recorded, version_of
from shared.dev.stages import StageFailed, stage
from shared.dev.template import remember_source, shown, source_of
from shared.dev.trees import Conflict, Trees, apart

_CHANGELOG = "docs/CHANGELOG.md"
_LOCKS = "requirements/"
_SECTION = re.compile(r"^## (v\d+\.\d+\.\d+)\b.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What is on the branch. conflicts: files that a person has to look at, and why; all others are merged.

    notes: files that stay deleted or are left out. relock: whether lock files are a mixture. asks: what CHANGELOG says.
    """

    tag: str
    branch: str
    changed: int
    conflicts: tuple[str, ...]
    notes: tuple[str, ...]
    relock: bool
    asks: str

    def lines(self) -> Iterator[str]:
        if self.asks:
            yield f"{self.asks}\n"
        yield f"branch    {self.branch}: {self.tag} and all of yours; {self.changed} files change"
        yield from (f"note      {each}" for each in self.notes)
        yield from (f"conflict  {each}" for each in self.conflicts)
        yield f"next      git switch {self.branch}"
        if self.conflicts:
            yield "          resolve the conflicts, then git commit -a --amend --no-edit"
        if self.relock:
            yield "          python3 dev.py lock, then git commit -a --amend --no-edit"
        yield "          python3 dev.py check, then merge the branch"


def upgrade(root: Path, tag: str | None, source: str | None) -> Upgrade:
    """tag: by default the newest. source: a path or URL of the template; remembered.

    Raises StageFailed; then there is no branch.
    """
    check_merges(git(root, "--version"))
    check_clean(root, "--untracked-files=no")
    # Whatever is committed from now on is not in the upgrade, and not undone by it.
    head = git(root, "rev-parse", "HEAD")
    record = recorded(root)
    source = source_of(root, source)
    tag = _chosen(root, source, record.release, tag)
    remember_source(root, source)
    for branch in (_branch(tag), "upgrade"):  # git has no branch below another
        if ran(root, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}").returncode == 0:
            raise StageFailed(f"there is a branch {branch}", f"merge it, or `git branch -D {branch}`")
    with apart(root) as trees:
        with stage("[1/3]", "fetch") as now:
            trees.fetch(source, record.release, tag)
            trees.keep_release(record.release)
            trees.keep_release(tag)
            now.done = f"{record.release} and {tag} from {shown(source)}"
        with stage("[2/3]", "do again") as now:
            alike = trees.alike((record.release, tag), record.steps)
            now.done = ", ".join(" ".join(step.values()) for step in alike.done) or "nothing: nothing was done"
        with stage("[3/3]", "merge") as now:
            base, new = alike.trees
            done = _merge(root, head, trees, (base, new, trees.of_clone(head)), record, tag, alike.notes)
            now.done = f"{len(done.conflicts)} conflicts"
    return done


def asked(changelog: str, release: str, tag: str) -> str:
    """The sections about what came after `release`, up to `tag`."""
    first, last = version_of(release), version_of(tag)
    found = [each[0].strip() for each in _SECTION.finditer(changelog) if first < version_of(each[1]) <= last]
    return "\n\n".join(found)


def _branch(tag: str) -> str:
    return f"upgrade/{tag}"


def _chosen(root: Path, source: str, release: str, tag: str | None) -> str:
    """The release to upgrade to. Raises StageFailed unless it is there and newer, and the present one is there, too."""
    listed = git(root, "ls-remote", "--quiet", "--tags", "--refs", "--", source)
    found = sorted(re.findall(r"\trefs/tags/(v\d+\.\d+\.\d+)$", listed, re.MULTILINE), key=version_of)
    if release not in found:
        raise StageFailed(f"{shown(source)} has no {release}, which this clone began with", "name the template: --from")
    chosen = tag or found[-1]
    if version_of(chosen) <= version_of(release):
        raise StageFailed(f"this clone is at {release}; there are {', '.join(found)}", "name a later one, if any")
    if chosen not in found:
        raise StageFailed(f"{shown(source)} has no {chosen}", f"name one of: {', '.join(found)}")
    return chosen


def _merge(
    root: Path, head: str, trees: Trees, three: tuple[str, str, str], record: Record, tag: str, notes: Sequence[str]
) -> Upgrade:
    """Writes the branch. What the team has deleted stays deleted; a lock file in conflict becomes the new release's.

    head: the clone's commit. three: the trees of the first release, the new one and the clone.
    """
    merged, conflicts = trees.merge(*three, tag)
    before, theirs, ours = map(trees.files, three)
    deleted = {path for path, each in conflicts.items() if "delete" in each.kind and path not in ours}
    living = ours | trees.moved(three[0], three[2]).keys()
    added = theirs - before - ours - {to for path, to in trees.moved(*three[:2]).items() if path in living}
    astray = {path for path in added if _is_in_deleted(path, before, ours)}
    left_out = {path for path in astray if _is_in_deleted(path, before, living)}
    changed = (path for path in conflicts.keys() - deleted if path in theirs)
    locks = {path for path in changed if path.startswith(_LOCKS) and path.endswith(".lock")}
    tree = trees.changed(merged, removed=deleted | left_out, of=dict.fromkeys(locks, three[1]))
    commit = _write(root, head, trees, tree, record.release, tag)
    rest = {path: each for path, each in conflicts.items() if path not in deleted | locks}
    return Upgrade(
        tag=tag,
        branch=_branch(tag),
        changed=len(git(root, "diff-tree", "-r", "--name-only", head, commit).splitlines()),
        conflicts=tuple(f"{path}: {_why(path, each, theirs, tag)}" for path, each in sorted(rest.items())),
        notes=(
            *notes,
            *(_kept_deleted(conflicts[path], tag) for path in sorted(deleted)),
            *(f"{path} is left out: it is new, in a folder that you deleted" for path in sorted(left_out)),
            *(f"{path} is new, in a folder that you moved: move it, too" for path in sorted(astray - left_out)),
        ),
        relock=bool(locks) or trees.mixed(tree, three, _LOCKS),
        asks=asked(trees.text(three[1], _CHANGELOG), record.release, tag),
    )


def _is_in_deleted(path: str, before: Set[str], ours: Set[str]) -> bool:
    """Whether it is in a folder that was there, and of which the clone has kept nothing."""
    folders = [f"{folder}/" for folder in PurePosixPath(path).parents if folder.name]
    return any(_has(before, folder) and not _has(ours, folder) for folder in folders)


def _has(paths: Set[str], folder: str) -> bool:
    return any(path.startswith(folder) for path in paths)


def _kept_deleted(conflict: Conflict, tag: str) -> str:
    moved, *was = conflict.names
    return f"{was[0]} stays deleted; {tag} calls it {moved}" if was else f"{moved} stays deleted; {tag} changes it"


def _why(path: str, conflict: Conflict, theirs: Set[str], tag: str) -> str:
    kind, (_, *now) = conflict
    if "delete" in kind and path not in theirs:
        return f"you have changed it, and {tag} has deleted it; it stays"
    if "binary" in kind:
        return f"you have changed it, and so has {tag}; yours stays"
    if "rename/rename" in kind and len(now) == 2:
        return f"you call it {now[0]}, and {tag} calls it {now[1]}; both are there: keep one"
    if now:
        return f"{kind}; see {', '.join(now)}"
    return f"you have changed lines that {tag} has changed, too" if "contents" in kind else kind


def _write(root: Path, head: str, trees: Trees, tree: str, release: str, tag: str) -> str:
    """Commits the tree onto the clone's commit, on the branch. Its author is the user, or git says what it lacks."""
    trees.keep(tree, kept := "refs/onefold/merged")
    try:
        folder = git(root, "rev-parse", "--show-prefix")
        whole = trees.placed(tree, folder, head) if folder else tree
        commit = git(root, "commit-tree", whole, "-p", head, "-m", f"Upgrade from {release} to {tag}")
        git(root, "branch", "--no-track", _branch(tag), commit)
    finally:
        git(root, "update-ref", "-d", kept)
    return commit
