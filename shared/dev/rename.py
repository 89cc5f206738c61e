"""`rename`: another name for the project, in whatever a person or a program outside of it meets; files keep theirs.

What names data that are there already stays, so that a renamed system finds them: ADR 36.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from shared.dev.git import check_clean, git
from shared.dev.record import recorded, remember
from shared.dev.scaffold import formatted
from shared.dev.stages import StageFailed
from shared.runtime.checkout import found_services

MEANS = (
    "topics, groups, rows and databases keep their names: a renamed system finds its data",
    "callers, dashboards and deployments have to use the new headers, metrics and variables",
    "stop all workers of a service before its first renamed one: they do not know each other's headers",
    "Compose begins with empty volumes, unless -p says the old name; on Kubernetes, delete the StatefulSets first",
)
_NAME = re.compile(r"(?=.{2,32}$)[a-z][a-z0-9]*(-[a-z0-9]+)*")  # a Linux user is called so, too
_WORD = re.compile(r"[A-Za-z][\w-]*")
# Tables and a property of archives; folders, git's names and files; the template itself.
_STAYS = (
    r"onefold(?:_person_keys|_sink_positions|_sinks|_deleted|\.ends)\b"
    r'|\.onefold\b|(?:cache|CACHE_HOME)/onefold|/ "onefold"|refs/onefold'
    r"|onefold\.(?:json|pth|template|toml|yml)\b|template \[Onefold\]"
)
_FOUND = re.compile(rf"{_STAYS}|(?P<name>_?onefold_?|Onefold-?|ONEFOLD)")
_ITS_TEST = "tests/scaffold/test_rename.py"  # removed: a renamed project can't be renamed
_TEMPLATES_OWN = ("LICENSE", "docs/adr/", _ITS_TEST)
_COMPOSED = re.compile(r"^name: [\w-]+?((?:-cluster|-secure)?)$", re.MULTILINE)


def rename(root: Path, name: str, *, dry_run: bool) -> Mapping[str, str]:
    """Renames what git knows here, and notes it. Returns the new shapes of the name, by the old. Raises StageFailed."""
    if not _NAME.fullmatch(name):
        shape = "use 2 to 32 lower-case letters, digits and single -, a letter first, such as ticket-office"
        raise StageFailed(f"{name!r} is not a name for a project", shape)
    if earlier := [step["name"] for step in recorded(root).steps if step["verb"] == "rename"]:
        raise StageFailed(f"this project is called {earlier[0]} already", "revert the commit that renamed it")
    check_clean(root)
    texts = _texts(root, git(root, "ls-files", "-z").split("\0"))
    _check_free(root, texts.values(), name)
    if not dry_run:
        _carry_out(root, texts, name)
        remember(root, "rename", name=name)
    return {old: _renamed(old, name) for old in ("onefold", "ONEFOLD_ENV", "Onefold-Position", "onefold_ready")}


def rename_again(root: Path, name: str) -> None:
    """Does so in another release: a folder that holds nothing else."""
    paths = (str(path.relative_to(root)) for path in root.rglob("*"))
    _carry_out(root, _texts(root, (path for path in paths if not path.startswith(".git/"))), name)


def _carry_out(root: Path, texts: Mapping[str, str], name: str) -> None:
    changed = list[Path]()
    for path, text in texts.items():
        if (new := _text(path, text, name)) != text:
            (root / path).write_bytes(new.encode())  # with its ends of lines
            changed.append(root / path)
    formatted(root, root, changed)
    (root / _ITS_TEST).unlink(missing_ok=True)


def _texts(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """Of the regular files that have some, but for the template's own."""
    found = dict[str, str]()
    for path in paths:
        file = root / path
        if path and not path.startswith(_TEMPLATES_OWN) and file.is_file() and not file.is_symlink():
            try:
                found[path] = file.read_bytes().decode()
            except UnicodeDecodeError:
                continue
    return found


def _text(path: str, text: str, name: str) -> str:
    new = _renamed(text, name)
    composed = path == "docker-compose.yml" or re.fullmatch(r"compose\.\w+\.yml", path)
    return _COMPOSED.sub(rf"name: {name}\1", new) if composed else new  # a team may have given it another


def _renamed(text: str, name: str) -> str:
    title, snake = name.title(), name.replace("-", "_")
    shapes = {"ONEFOLD": snake.upper(), "Onefold-": f"{title}-", "onefold": name}

    def shape(found: re.Match[str]) -> str:
        word = found["name"]
        if word is None:
            return found[0]
        if word == "Onefold":  # of a class, or in prose
            return title.replace("-", "" if text[found.end() : found.end() + 1].isupper() else " ")
        return shapes.get(word) or word.replace("onefold", snake)

    return _FOUND.sub(shape, text)


def _check_free(root: Path, texts: Iterable[str], name: str) -> None:
    """Raises StageFailed if something else would have the same name, or an environment variable the same prefix."""
    words = {word for text in texts for word in _WORD.findall(text)}
    variable = _renamed("ONEFOLD", name)
    ours = {name, f"{name}-cluster", f"{name}-secure", name.title(), variable}  # as in a project that began with it
    new = {renamed for word in words if (renamed := _renamed(word, name)) != word} - ours
    taken = sorted((new & words) | {word for word in words if word.startswith(f"{variable}_")})
    if name in found_services(root, having="__init__.py"):
        taken = [f"services/{name}"]
    if taken:
        raise StageFailed(f"{name} is taken: there is {', '.join(taken[:3])}", "choose another name")
