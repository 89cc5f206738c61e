"""Trees of releases, made like a clone and merged with it, in a repository that sees what the clone has."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from shared.dev.git import git, ran
from shared.dev.record import FILE, Step, set_release
from shared.dev.stages import StageFailed

_NOBODY = "onefold"
# Of the user's settings, none that would make another tree of the same files.
_PLAIN = ("-c", "core.autocrlf=false", "-c", "core.excludesFile=/dev/null", "-c", "core.hooksPath=/dev/null")
# A fetch would walk the clone's history from its refs, and a shallow or partial clone has not all of it.
_ALONE = ("-c", "core.alternateRefsCommand=true")
_SETTINGS = ("-c", "merge.directoryRenames=false", "-c", "merge.conflictStyle=merge")
_MERGE = (*_SETTINGS, "merge-tree", "--write-tree", "-z", "--name-only")


class Conflict(NamedTuple):
    """kind: git's word for it, such as CONFLICT (contents). names: of the file in question, as each side calls it."""

    kind: str
    names: tuple[str, ...]


class Merged(NamedTuple):
    """conflicts: by path."""

    tree: str
    conflicts: dict[str, Conflict]


class Alike(NamedTuple):
    """trees: one for each release, in which the steps `done` are done. notes: about copies that are made in none."""

    trees: tuple[str, ...]
    done: list[Step]
    notes: tuple[str, ...]


class StepRefused(StageFailed):
    """A release cannot do again what was done to the clone."""

    def __init__(self, tag: str, step: Step, said: str) -> None:
        problem = f"{tag} cannot do again what `dev.py` has done here, {' '.join(step.values())}: {said}"
        super().__init__(problem, f"name another release, or delete that step from {FILE}")
        self.step = step


class Trees:
    """Releases are at `refs/releases/TAG`; trees are named by their ids."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._repository = folder / "repository"
        git(folder, "init", "-q", "--bare", "--template=", self._repository)
        objects = Path(root, git(root, "rev-parse", "--git-path", "objects")).resolve()
        alternates = self._repository / "objects" / "info" / "alternates"
        alternates.parent.mkdir(exist_ok=True)
        alternates.write_text(f"{objects}\n")

    def fetch(self, source: str, *tags: str) -> None:
        """source: a path, from the clone's folder, or URL. Needs a network if it is on one."""
        where = Path(source).as_uri() if Path(source).is_dir() else source  # of a path, all of history would be copied
        refs = (f"+refs/tags/{tag}:{_release(tag)}" for tag in tags)
        command = (*_PLAIN, *_ALONE, "fetch", "-q", "--no-tags", "--depth=1", "--", where, *refs)
        git(self._root, *command, environment=self._environment)

    def take(self, tag: str) -> None:
        """A release that the clone has kept."""
        self._git("update-ref", _release(tag), git(self._root, "rev-parse", release_at(tag)))

    def services(self, tag: str) -> set[str]:
        paths = self._git("ls-tree", "-z", "--name-only", _release(tag), "services/").split("\0")
        return {PurePosixPath(path).name for path in paths}

    def alike(self, tags: Sequence[str], steps: Sequence[Step]) -> Alike:
        """Raises StepRefused when one of them can't do what is no copy of a service."""
        services = set[str].intersection(*map(self.services, tags))
        left, notes = [*steps], list[str]()
        while True:
            done, skipped = possible(left, services)
            try:
                trees = tuple(self.made(tag, done) for tag in tags)
            except StepRefused as refused:
                if refused.step["verb"] != "new-service":
                    raise
                left.remove(refused.step)
                notes.append(f"services/{refused.step['name']} gets no fixes: {refused.problem}")
            else:
                missing = (f"services/{each['name']} gets no fixes: {each['like']} is not" for each in skipped)
                return Alike(trees, done, (*notes, *(f"{each} in both releases" for each in missing)))

    def made(self, tag: str, steps: Sequence[Step]) -> str:
        """The tree of a release in which the steps are done, by its own code. Raises StepRefused."""
        folder = self._folder / tag
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self._git("read-tree", _release(tag))
        self._git(f"--work-tree={folder}", "checkout-index", "-a", "-q", f"--prefix={folder}/")
        set_release(folder, tag)
        for step in steps:
            _redo(folder, tag, step)
        self._git(f"--work-tree={folder}", "add", "-A", folder)
        return self._git("write-tree")

    def of_clone(self, commit: str) -> str:
        return git(self._root, "rev-parse", f"{commit}:./")

    def files(self, tree: str) -> set[str]:
        return {*self._git("ls-tree", "-r", "-z", "--name-only", tree).split("\0")} - {""}

    def moved(self, old: str, new: str) -> dict[str, str]:
        """Where files of the old tree are in the new one, by their old paths, as a merge sees it."""
        found = self._git("diff-tree", "-r", "-z", "-M", "-l7000", "--diff-filter=R", "--name-status", old, new)
        parts = found.split("\0")
        return dict(zip(parts[1::3], parts[2::3], strict=False))

    def text(self, tree: str, path: str) -> str:
        """Empty if there is no such file."""
        return self._git("show", f"{tree}:{path}") if path in self.files(tree) else ""

    def merge(self, base: str, new: str, clone: str, tag: str) -> Merged:
        """Conflicts have marks that name the sides `yours` and the tag."""
        began = self._commit(base)
        self._git("update-ref", "refs/heads/yours", self._commit(clone, began))
        self._git("update-ref", f"refs/heads/{tag}", self._commit(new, began))
        run = ran(self._folder, *_PLAIN, *_MERGE, "yours", tag, environment=self._environment)
        if run.returncode not in (0, 1):
            raise StageFailed(f"git merge-tree: {run.stderr.strip()}", "mend what git says")
        return merged_of(run.stdout)

    def changed(self, tree: str, removed: Iterable[str], of: Mapping[str, str]) -> str:
        """The tree without what is removed, and with the files of other trees. of: the other tree, by path."""
        entries = [f"0 {'0' * 40}\t{path}" for path in removed]
        entries += [self._entry(other, path) for path, other in of.items()]
        self._git("read-tree", tree)
        self._git("update-index", "-z", "--index-info", stdin="".join(f"{entry}\0" for entry in entries))
        return self._git("write-tree")

    def mixed(self, tree: str, others: Iterable[str], folder: str) -> bool:
        """Whether a file in the folder is as it is in none of the others."""
        lines = (set(self._git("ls-tree", "-r", "-z", each, folder).split("\0")) for each in others)
        return not set(self._git("ls-tree", "-r", "-z", tree, folder).split("\0")) <= set[str]().union(*lines)

    def keep(self, tree: str, ref: str) -> None:
        """Copies the tree into the clone, as a commit without parents at `ref`."""
        self._git("update-ref", "refs/heads/kept", self._commit(tree))
        copied = f"+refs/heads/kept:{ref}"
        git(self._root, "fetch", "-q", "--no-tags", "--no-write-fetch-head", self._repository, copied)

    def keep_release(self, tag: str) -> None:
        self.keep(f"{_release(tag)}^{{tree}}", release_at(tag))

    def placed(self, tree: str, folder: str, commit: str) -> str:
        """The tree of a commit of the clone's with this one in the clone's folder. folder: with a slash at its end."""
        index = {"GIT_INDEX_FILE": str(self._folder / "index")}
        git(self._root, "read-tree", commit, environment=index)
        git(self._root, "rm", "-r", "-q", "--cached", "--sparse", ".", environment=index)
        git(self._root, "read-tree", f"--prefix={folder}", tree, environment=index)
        return git(self._root, "write-tree", environment=index)

    @property
    def _environment(self) -> dict[str, str]:
        people = {f"GIT_{who}_{what}": _NOBODY for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        return people | {"GIT_DIR": str(self._repository), "GIT_INDEX_FILE": str(self._folder / "index")}

    def _git(self, *arguments: str | Path, stdin: str | None = None) -> str:
        return git(self._folder, *_PLAIN, *arguments, stdin=stdin, environment=self._environment)

    def _commit(self, tree: str, *parents: str) -> str:
        return self._git("commit-tree", tree, "-m", _NOBODY, *(part for each in parents for part in ("-p", each)))

    def _entry(self, tree: str, path: str) -> str:
        return self._git("ls-tree", "-z", tree, path).rstrip("\0")


@contextmanager
def apart(root: Path) -> Iterator[Trees]:
    """Outside of the clone; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="onefold-trees-") as folder:
        yield Trees(root, Path(folder).resolve())


def release_at(tag: str) -> str:
    """The ref in the clone of a release as the template has it. A tag of that name is the team's own."""
    return f"refs/onefold/releases/{tag}"


def made_at(release: str, steps: Sequence[Step]) -> str:
    """The ref of the tree in which the steps are done. release: the tree in which they are not."""
    done = hashlib.sha256(json.dumps([release, *map(dict, steps)]).encode()).hexdigest()
    return f"refs/onefold/made/{done[:12]}"


def merged_of(output: str) -> Merged:
    """Of what `merge-tree -z` prints: tree, files, an empty one, and count, files, kind and text of each message."""
    tree, *rest = output.split("\0")
    conflicts = dict[str, Conflict]()
    at = rest.index("") + 1
    while at < len(rest) and rest[at].isdigit():
        last = at + int(rest[at])
        if (kind := rest[last + 1]).startswith("CONFLICT"):
            names = tuple(rest[at + 1 : last + 1])
            conflicts.setdefault(names[0], Conflict(kind, names))  # of a picture, the first says so
        at = last + 3
    return Merged(tree, conflicts)


def _release(tag: str) -> str:
    return f"refs/releases/{tag}"


def possible(steps: Sequence[Step], services: Set[str]) -> tuple[list[Step], list[Step]]:
    """The steps that all releases can do, and the others. services: of all releases.

    Done in one of them alone, a copy would be a service that comes or goes as a whole.
    """
    known, done, skipped = {*services}, list[Step](), list[Step]()
    for step in steps:
        if "like" in step and step["like"] not in known:
            skipped.append(step)
            continue
        done.append(step)
        known.add(step.get("name", ""))
    return done, skipped


def _redo(folder: Path, tag: str, step: Step) -> None:
    command = [sys.executable, "-P", "-m", "shared.dev.replay", json.dumps([dict(step)])]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if run.returncode != 0:
        raise StepRefused(tag, step, run.stderr.strip())
