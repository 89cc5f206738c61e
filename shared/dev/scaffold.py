"""`new-service`: copies a service of this checkout, its unit tests and its compose block under another name.

Standard library and ruff only. What belongs to others is not renamed: other services' messages, the parameters of
every list. Everything is made in a folder of its own and moved into place at the end.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import keyword
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

from shared.checkout import found_services
from shared.dev.stages import StageFailed
from shared.topology import ENGINE_TABLES

COMPOSE = "docker-compose.yml"
SECURE = "compose.secure.yml"
DEV = "compose.dev.yml"
PROMETHEUS = "deploy/prometheus.yml"

_NAME = re.compile(r"[a-z][a-z0-9]{0,31}")
_WIRE_NAME = re.compile(r'^    TYPE = "([a-z0-9]+)\.', re.MULTILINE)
_TREE_LINE = re.compile(r"^( *[├└]── \w+) +(\S+)$", re.MULTILINE)
_BLOCK = re.compile(
    r'^  (\w+):\n    <<: \*worker\n.*?ports: \["[^"]*:-(\d+)-(\d+)\}:\d+"\]\n', re.MULTILINE | re.DOTALL
)
_PORTS_A_SERVICE = 10
_MADE = re.compile(r"\.|__pycache__$")
_OWN_MESSAGES = ("commands", "events")
_LIST_QUERY = "ListQuery"
_LIST_PARAMETERS = {"order", "limit", "cursor", "complete", "max_lag", "partitions"}
_OWN_ROUTES = ("changes", "cluster", "docs", "healthz", "metrics", "readyz")  # first segments of every worker's paths

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Noun:
    """`plural` names a service, its topics and routes; `singular` its messages and classes (None: only views)."""

    plural: str
    singular: str | None

    @property
    def words(self) -> tuple[str, ...]:
        """In the order of `plural`, `singular`."""
        return (self.plural,) if self.singular is None else (self.plural, self.singular)


@dataclass(frozen=True, slots=True)
class Created:
    """The new folders, and what was added to existing files, by file."""

    folders: tuple[str, ...]
    additions: dict[str, str]


def new_service(root: Path, name: str, like: str, singular: str | None = None) -> Created:
    """Copies `like`, whole or not at all. singular: of `name`, if that is not `name` without its s.

    Raises StageFailed when the name cannot be used; then nothing is left behind.
    """
    old = _noun_of(root, like)
    _check_free(root, Noun(_legal(name), None))
    new = _noun(name, singular, old)
    _check_free(root, new)
    folders = [each for each in (f"services/{like}", f"tests/unit/{like}") if (root / each).exists()]
    texts = {file: file.read_text() for folder in folders for file in _files(root / folder)}
    _check_unmistakable(texts, old, new)
    additions = [each for add in (_compose_block, _principal, _watch, _scrape) if (each := add(root, like, name))]
    (root / ".onefold").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root / ".onefold", prefix="new-service-") as folder:
        staged = Path(folder)
        for file, text in _renamed(texts, _foreign_words(root, like), _renaming(old, new)):
            path = staged / _renaming(old, new)(str(file.relative_to(root)))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        _tidy(root, staged)
        made = tuple(_renaming(old, new)(folder) for folder in folders)
        _move(staged, root, made, {root / each.file: each.text for each in additions})
    return Created(made, {each.file: each.what for each in additions})


def _noun_of(root: Path, service: str) -> Noun:
    if service not in found_services(root):
        raise StageFailed(f"no service is called {service}", f"--like one of: {', '.join(found_services(root))}")
    commands = root / "services" / service / "domain" / "commands.py"
    prefix = _WIRE_NAME.search(commands.read_text()) if commands.exists() else None
    return Noun(service, prefix[1] if prefix else None)


def _noun(name: str, singular: str | None, old: Noun) -> Noun:
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
    return name.removesuffix("s") if name.endswith("s") and not name.endswith(("ss", "us", "is")) else None


def _check_free(root: Path, new: Noun) -> None:
    if new.plural in _OWN_ROUTES:
        raise StageFailed(f"{new.plural} is reserved: every worker answers at /{new.plural}", "choose another name")
    if new.plural in ENGINE_TABLES:
        raise StageFailed(f"{new.plural} is reserved: the engine keeps a table of that name", "choose another name")
    python = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
    packages = {*sys.stdlib_module_names, *packages_distributions(), *(path.name for path in root.iterdir()), "onefold"}
    for word in new.words:
        if word in python or (word == new.plural and word in packages):
            other = "choose another name" if word == new.plural else "choose another name, or another --singular"
            raise StageFailed(f"{word} is reserved: it is a name of Python or of a package", other)
    for service in found_services(root, having="__init__.py"):
        if taken := {*new.words} & {service, *_wire_names(root / "services" / service)}:
            raise StageFailed(f"{taken.pop()} is taken: services/{service} or its messages", "choose another name")
    for folder in (f"services/{new.plural}", f"tests/unit/{new.plural}"):
        if (root / folder).exists():
            raise StageFailed(f"{new.plural} is taken: {folder} exists", "choose another name")
    for service in found_services(root, having="topology.py"):
        if re.search(rf'"{new.plural}[.-]', (root / "services" / service / "topology.py").read_text()):
            topics = f"topics of {new.plural} are named in services/{service}/topology.py"
            raise StageFailed(f"{new.plural} is taken: {topics}", "choose another name")
    if re.search(rf"^  {new.plural}:", _text(root / COMPOSE), re.MULTILINE):
        raise StageFailed(f"{new.plural} is taken: it is in {COMPOSE}", "choose another name")


def _wire_names(service: Path) -> set[str]:
    own = [service / "domain" / f"{module}.py" for module in _OWN_MESSAGES]
    return {name for module in own if module.exists() for name in _WIRE_NAME.findall(module.read_text())}


def _check_unmistakable(texts: dict[Path, str], old: Noun, new: Noun) -> None:
    """Refuses a word that the copied code uses for something else: it would then mean two things."""
    rename = _renaming(old, new)
    names = {name for file, text in texts.items() if file.suffix == ".py" for name in _names(text)}
    if clashes := sorted(rename(name) for name in names if rename(name) != name and rename(name) in names):
        already = f"services/{old.plural} already uses {', '.join(clashes)} for something else"
        raise StageFailed(f"{' and '.join(new.words)} cannot be told apart: {already}", "choose another name")


def _names(source: str) -> Iterator[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return (token.string for token in tokens if token.type == tokenize.NAME)


def _files(folder: Path) -> list[Path]:
    """Without what tools leave there, such as __pycache__ and .DS_Store."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(_MADE.match(part) for part in path.relative_to(folder).parts))


def _renaming(old: Noun, new: Noun) -> Callable[[str], str]:
    """Renames the noun wherever it is a word of its own or a part of a name: orders, ORDERS, order_id, PlaceOrder."""
    plain = dict(zip(old.words, new.words, strict=True))
    forms = {shape(word): shape(plain[word]) for word in plain for shape in (str.lower, str.title, str.upper)}
    lower, title, upper = ("|".join(shape(word) for word in plain) for shape in (str.lower, str.title, str.upper))
    noun = rf"(?<![A-Za-z])(?:{lower})(?![a-z])|(?:{title})(?![a-z])|(?<![A-Za-z])(?:{upper})(?![A-Za-z])"
    pattern = re.compile(rf"(?:(?<![A-Za-z])(?P<a>[Aa])n?(?P<gap>[ _]))?(?P<noun>{noun})")

    def replaced(match: re.Match[str]) -> str:
        word = forms[match["noun"]]
        article = match["a"] + ("n" if word[0].lower() in "aeio" else "") + match["gap"] if match["a"] else ""
        return article + word

    return lambda text: pattern.sub(replaced, text)


def _foreign_words(root: Path, like: str) -> set[str]:
    """The first words of other services' topics, messages and error codes."""
    others = [service for service in found_services(root, having="__init__.py") if service != like]
    return {word for other in others for word in (other, *_wire_names(root / "services" / other))}


def _renamed(texts: dict[Path, str], words: set[str], rename: Callable[[str], str]) -> Iterator[tuple[Path, str]]:
    neighbours = {file for file, text in texts.items() if _is_neighbour(file, text)}
    foreign = {node.name for file in neighbours for node in _classes(ast.parse(texts[file]))}
    dotted = re.compile(rf"(?<![\w.])(?:{'|'.join(words) or '(?!)'})\.[a-z_.-]+|\b(?:{'|'.join(foreign) or '(?!)'})\b")
    for file, text in texts.items():
        kept = [match.span() for match in dotted.finditer(text)]
        if file.suffix == ".py":
            kept += _kept(text, foreign, whole=file in neighbours)
        yield file, _between(text, sorted(kept), rename)


def _is_neighbour(file: Path, text: str) -> bool:
    """Whether a module re-declares messages of another service."""
    return file.parent.name == "domain" and file.stem not in _OWN_MESSAGES and bool(_WIRE_NAME.search(text))


def _classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _kept(source: str, foreign: set[str], *, whole: bool) -> list[Span]:
    """Where `source` uses names that belong to others. foreign: the re-declared classes; whole: declared here."""
    place = _Places(source)
    spans: list[Span] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef() if whole:
                spans.append(place.of(node))
            case ast.ClassDef(bases=[ast.Name(id=base)], body=body) if base == _LIST_QUERY:
                fields = [field.target for field in body if isinstance(field, ast.AnnAssign)]
                spans += [place.of(field) for field in fields if ast.unparse(field) in _LIST_PARAMETERS]
            case ast.Call(func=ast.Name(id=name), keywords=fields) if name in foreign:
                spans += [place.before(field.value, f"{field.arg}=") for field in fields if field.arg]
            case ast.MatchClass(cls=ast.Name(id=name), kwd_attrs=fields, kwd_patterns=patterns) if name in foreign:
                spans += [place.before(*pair) for pair in zip(patterns, (f"{field}=" for field in fields), strict=True)]
    return spans


class _Places:
    """Where the nodes of a module are in its text; `ast` counts lines, and bytes within a line."""

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def of(self, node: ast.stmt | ast.expr) -> Span:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def before(self, node: ast.expr | ast.pattern, text: str) -> Span:
        """The place of `text`, which ends where the node starts."""
        start = self._at(node.lineno, node.col_offset)
        return start - len(text), start

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _between(text: str, kept: Iterable[Span], rename: Callable[[str], str]) -> str:
    parts, end = [], 0
    for start, stop in kept:
        if start >= end:
            parts += [rename(text[end:start]), text[start:stop]]
            end = stop
    return "".join([*parts, rename(text[end:])])


def _tidy(root: Path, staged: Path) -> None:
    """Sorts imports, formats, and breaks lines of prose that the new name has made too long. Raises StageFailed."""
    width = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["ruff"]["line-length"]
    ours = f"src = {json.dumps([str(root), str(staged)])}"  # ruff sorts imports by what it finds there
    _ruff("check", "--fix", "--select=I", "--config", ours, staged)
    _ruff("format", staged)
    for file in _files(staged):
        if file.suffix == ".py":
            file.write_text(_wrapped(_aligned(file.read_text()), width))
    _ruff("check", "--config", ours, staged)


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


@dataclass(frozen=True, slots=True)
class _Addition:
    """text: of the whole file, with the addition. what: describes the addition."""

    file: str
    text: str
    what: str


def _compose_block(root: Path, like: str, name: str) -> _Addition | None:
    """A block like that of `like`, after all others, with host ports of its own; None where `like` has none."""
    text = _text(root / COMPOSE)
    blocks = list(_BLOCK.finditer(text))
    models = [block[0] for block in blocks if block[1] == like]
    if not models:
        return None
    first = max(int(block[3]) for block in blocks) + 1
    ports = f"{first}-{first + _PORTS_A_SERVICE - 1}"
    block = re.sub(r":-\d+-\d+\}", f":-{ports}}}", _renaming(Noun(like, None), Noun(name, None))(models[0]))
    end = blocks[-1].end()
    return _Addition(COMPOSE, f"{text[:end]}\n{block}{text[end:]}", f"{name}, on host ports {ports}")


def _principal(root: Path, like: str, name: str) -> _Addition | None:
    """A principal like that of `like`, with a password of its own; None where `like` has none."""
    return _copied(root, SECURE, like, name, "a principal")


def _watch(root: Path, like: str, name: str) -> _Addition | None:
    """Watched for edited code, if `like` is."""
    return _copied(root, DEV, like, name, "watched")


def _copied(root: Path, file: str, like: str, name: str, what: str) -> _Addition | None:
    """Each entry of `like` in `file`, followed by the same for `name`."""
    rename = _renaming(Noun(like, None), Noun(name, None))
    entries = re.compile(rf"^  {like}:.*\n(?:    .*\n)*\n?", re.MULTILINE)

    def twice(entry: re.Match[str]) -> str:
        apart = "\n" if entry[0].count("\n") > 1 and not entry[0].endswith("\n\n") else ""  # the last block of a file
        return entry[0] + apart + rename(entry[0])

    text, times = entries.subn(twice, _text(root / file))
    return _Addition(file, text, f"{name}, {what}") if times else None


def _scrape(root: Path, like: str, name: str) -> _Addition | None:
    """Scraped by Prometheus, if `like` is."""
    text, times = re.subn(rf"( names: \[.*\b{like}\b[^\]]*)\]", rf"\1, {name}]", _text(root / PROMETHEUS))
    return _Addition(PROMETHEUS, text, name) if times else None


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


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
