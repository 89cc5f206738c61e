"""`new-service`: copies a service of this checkout, or a pattern, with its unit tests, under another name.

patterns.py says which patterns there are, nouns.py what a copy may be called, renaming.py renames it, and additions.py
says how it is run. Everything is made in a folder of its own and moved into place at the end.
"""

from __future__ import annotations

import ast
import fcntl
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.dev.additions import LIST, forget, listed, plain, with_ports
from shared.dev.nouns import free_words, new_words, noun_of, same_words
from shared.dev.patterns import FOLDER, PACKAGE, PATTERNS, Foreign, placed
from shared.dev.renaming import Rename, Texts, clashes, renamed, renaming
from shared.dev.stages import StageFailed

_TREE_LINE = re.compile(r"^( *[├└]── \w+) +(\S+)$", re.MULTILINE)
_MADE = re.compile(r"\.|__pycache__$|schemas\.json$")  # what a team has accepted of its own messages, too


@dataclass(frozen=True, slots=True)
class Created:
    """The new folders, their words by those that they replace, and what was added to existing files, by file."""

    folders: tuple[str, ...]
    words: Mapping[str, str]
    additions: Mapping[str, str]


def new_service(root: Path, name: str, like: str, singular: str | None = None, *, again: bool = False) -> Created:
    """Copies `like`, whole or not at all. singular: of `name`, if that is not `name` without its s.

    again: as a clone has it, in another release. What else has its name there gives way, and neither its words nor
    ruff's rules may refuse what was right when it was made.

    Raises StageFailed when the name cannot be used; then nothing is left behind.
    """
    words = same_words(noun_of(root, like), name, singular) if again else new_words(root, like, name, singular)
    return _made(root, name, _of_service(root, like, words), again=again)


def new_of_kind(
    root: Path, name: str, kind: str, on: Foreign | None = None, singular: str | None = None, *, again: bool = False
) -> Created:
    """As `new_service`, of a pattern. on: what a process or a view is told of another service."""
    if kind not in PATTERNS:
        raise StageFailed(f"there is no pattern of kind {kind}", f"name one of: {', '.join(PATTERNS)}")
    old = PATTERNS[kind]
    words = same_words(old, name, singular) if again else free_words(root, old, name, singular)
    return _made(root, name, _of_pattern(root, kind, words, on), again=again)


@dataclass(frozen=True, slots=True)
class _Copy:
    """files: by their paths in the checkout."""

    files: Mapping[str, bytes]
    folders: tuple[str, ...]
    words: Mapping[str, str]


def _of_service(root: Path, like: str, words: Mapping[str, str]) -> _Copy:
    rename = renaming(words)
    folders = [each for each in (f"services/{like}", f"tests/unit/{like}") if (root / each).exists()]
    contents = {file: file.read_bytes() for folder in folders for file in _files(root / folder)}
    texts = _texts(contents)
    _check_clashes(texts, rename, words, f"services/{like}")
    copies = contents | {file: text.encode() for file, text in renamed(texts, rename, root, like)}
    files = {rename(str(file.relative_to(root))): content for file, content in copies.items()}
    return _Copy(files, tuple(map(rename, folders)), words)


def _of_pattern(root: Path, kind: str, words: Mapping[str, str], on: Foreign | None) -> _Copy:
    pattern = PATTERNS[kind].plural
    rename = renaming((on.words if on else {}) | dict(words))
    texts = _texts({file: file.read_bytes() for file in _files(root / FOLDER / pattern)})
    _check_clashes(texts, rename, words, f"{FOLDER}/{pattern}")
    files = {path: text.encode() for path, text in plain(words[pattern]).items()}
    for file, text in texts.items():
        path = placed(str(file.relative_to(root)), pattern)
        text = on.partitioned(text) if on and file.name == "topology.py" else text
        files[rename(path)] = rename(text.replace(PACKAGE, "services.")).encode()
        if path.startswith("services/"):
            files.setdefault(rename(str(Path(path).with_name("__init__.py"))), b"")
    return _Copy(files, tuple(f"{parent}/{words[pattern]}" for parent in ("services", "tests/unit")), words)


def _check_clashes(texts: Texts, rename: Rename, words: Mapping[str, str], where: str) -> None:
    if taken := clashes(texts, rename):
        already = f"{where} already uses {', '.join(taken)} for something else"
        raise StageFailed(f"{' and '.join(words.values())} cannot be told apart: {already}", "choose another name")


def _made(root: Path, name: str, copy: _Copy, *, again: bool) -> Created:
    with (root / "pyproject.toml").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # else two at once have the same ports, and only one has its line in the lists
        return _made_alone(root, name, copy, again=again)


def _made_alone(root: Path, name: str, copy: _Copy, *, again: bool) -> Created:
    if again:
        forget(root, name)
    files, texts, added = {**copy.files}, dict[Path, str](), dict[str, str]()
    if (compose := f"services/{name}/deploy/compose.yml") in files:
        composed, ports = with_ports(root, files[compose].decode())
        files[compose] = composed.encode()
        for list_, text in listed(root, name).items():
            texts[root / list_] = text
            added[list_] = f"{name}, on host ports {ports}" if list_ == LIST else name
    (root / ".onefold").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root / ".onefold", prefix="new-service-") as folder:
        staged = Path(folder)
        for file, content in files.items():
            path = staged / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (formatted if again else _judged)(root, staged, _files(staged))
        _move(staged, root, copy.folders, texts)
    return Created(copy.folders, copy.words, added)


def _texts(contents: Mapping[Path, bytes]) -> dict[Path, str]:
    """Of those that are text."""
    return {file: text for file, content in contents.items() if (text := _text(content)) is not None}


def _files(folder: Path) -> list[Path]:
    """Without what tools leave there, such as __pycache__ and .DS_Store."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(_MADE.match(part) for part in path.relative_to(folder).parts))


def _text(content: bytes) -> str | None:
    """None: it is none, such as that of a picture."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _judged(root: Path, staged: Path, files: Sequence[Path]) -> None:
    """Tidies the copy by the checkout's own settings of ruff, and asks for its verdict. Raises StageFailed."""
    _tidy(root, staged, files)
    _ruff("check", "--config", _found_in(root, staged), staged)


def formatted(root: Path, staged: Path, files: Sequence[Path]) -> None:
    """Tidies them, by no settings that another ruff may not know, such as rules. Raises StageFailed.

    A string that the new name has made too long stays so, and is marked.
    """
    width, target = (json.dumps(_settings(root)[name]) for name in ("line-length", "target-version"))
    options = ("--isolated", f"--config=line-length={width}", f"--config=target-version={target}")
    _tidy(root, staged, files, *options)
    _ruff("check", *options, "--select=E501", "--add-noqa", *_modules(files))


def _modules(files: Iterable[Path]) -> list[Path]:
    return [file for file in files if file.suffix == ".py"]


def _tidy(root: Path, staged: Path, files: Sequence[Path], *options: str) -> None:
    """Sorts imports, formats, and breaks lines of prose that the new name has made too long. Raises StageFailed."""
    modules, width = _modules(files), _settings(root)["line-length"]
    _ruff("check", *options, "--fix", "--select=I", "--config", _found_in(root, staged), *modules)
    _ruff("format", *options, *modules)
    for file in modules:
        file.write_text(_wrapped(_aligned(file.read_text()), width))


def _found_in(root: Path, staged: Path) -> str:
    return f"src = {json.dumps([str(root), str(staged)])}"  # ruff sorts imports by what it finds there


def _settings(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["ruff"]
    return found


def _ruff(*arguments: str | Path) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    run = subprocess.run([ruff, *arguments, "--no-cache", "--quiet"], capture_output=True, text=True)
    if run.returncode != 0:
        raise StageFailed(f"ruff rejects the copy:\n{run.stdout}{run.stderr}", "choose a shorter name")


def _aligned(text: str) -> str:
    """Puts the codes in the tree of an errors.py into one column again."""
    widest = max((len(match[1]) for match in _TREE_LINE.finditer(text)), default=0)
    return _TREE_LINE.sub(lambda match: f"{match[1].ljust(widest)}   {match[2]}", text)


def _wrapped(source: str, width: int) -> str:
    """The source, with comments and docstrings in lines of at most `width`."""
    strings = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr) and _is_text(node.value)]
    prose = {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines: list[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        lead = re.match(r" *(# )?", line)
        assert lead
        rest = line
        while len(rest) > width and (lead[1] or number in prose):
            cut = rest.rfind(" ", len(lead[0]), width + 1)
            if cut < 0:
                break
            lines.append(rest[:cut])
            rest = lead[0] + rest[cut + 1 :]
        lines.append(rest)
    return "\n".join(lines) + "\n" if lines else ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _move(staged: Path, root: Path, folders: Iterable[str], texts: Mapping[Path, str]) -> None:
    """Moves all folders into place and writes all texts into their files, or none."""
    before = {file: file.read_text() for file in texts}
    moved: list[Path] = []
    try:
        for folder in folders:
            moved.append(root / folder)
            (staged / folder).rename(root / folder)
        for file, text in texts.items():
            file.write_text(text)
    except BaseException:
        for target in moved:
            shutil.rmtree(target, ignore_errors=True)
        for file, text in before.items():
            file.write_text(text)
        raise
