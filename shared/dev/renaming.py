"""Renames the words of a service in its files, but not what belongs to others, for `new-service`.

To others belong the names and fields of other services' messages, and the parameters of every list.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path

from shared.runtime.checkout import found_services

_WIRE_NAME = re.compile(r'(?:^    TYPE = |\beffect_service\(\s*"\w+",\s*)"([a-z0-9_]+)[."]', re.MULTILINE)
_OWN_MESSAGES = ("domain/commands.py", "domain/events.py", "service.py")
_LIST_QUERY = "ListQuery"
_LIST_PARAMETERS = {"order", "limit", "cursor", "complete", "max_lag", "partitions"}

Rename = Callable[[str], str]
Texts = Mapping[Path, str]
Span = tuple[int, int]


def renaming(words: Mapping[str, str]) -> Rename:
    """Renames each word wherever it stands alone or is a part of a name: orders, ORDERS, order_id, PlaceOrder."""
    shapes = (str.lower, _class_name, str.upper)
    forms = {shape(word): shape(words[word]) for word in words for shape in shapes}
    lower, title, upper = ("|".join(shape(word) for word in words) for shape in shapes)
    noun = rf"(?<![A-Za-z])(?:{lower})(?![a-z])|(?:{title})(?![a-z])|(?<![A-Za-z])(?:{upper})(?![A-Za-z])"
    pattern = re.compile(rf"(?:(?<![A-Za-z])(?P<a>[Aa])n?(?P<gap>[ _]))?(?P<noun>{noun})")

    def replaced(match: re.Match[str]) -> str:
        word = forms[match["noun"]]
        article = match["a"] + ("n" if word[0].lower() in "aeio" else "") + match["gap"] if match["a"] else ""
        return article + word

    return lambda text: pattern.sub(replaced, text)


def _class_name(word: str) -> str:
    return word.title().replace("_", "")


def clashes(texts: Texts, rename: Rename) -> list[str]:
    """Names that mean something else already in the code: renamed, it would use them for two things."""
    names = {name for file, text in texts.items() if file.suffix == ".py" for name in _names(text)}
    kept = {name for name in names if rename(name) == name}
    return sorted({rename(name) for name in names - kept} & kept)


def _names(source: str) -> Iterator[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return (token.string for token in tokens if token.type == tokenize.NAME)


def renamed(texts: Texts, rename: Rename, root: Path, like: str) -> Iterator[tuple[Path, str]]:
    """The files of the service `like`, with their new texts."""
    neighbours = {file for file in texts if _is_neighbour(file)}
    classes = {node.name for file in neighbours for node in _classes(ast.parse(texts[file]))}
    words = _foreign_words(root, like)
    foreign = re.compile(rf"(?<![\w.])(?:{_any_of(words)})\.[a-z_.-]+|\b(?:{_any_of(classes)})\b")
    for file, text in texts.items():
        kept = [match.span() for match in foreign.finditer(text)]
        if file.suffix == ".py":
            kept += _kept(text, classes, whole=file in neighbours)
        yield file, _between(text, sorted(kept), rename)


def _any_of(words: Set[str]) -> str:
    return "|".join(words) or "(?!)"


def _foreign_words(root: Path, like: str) -> set[str]:
    """The first words of other services' topics, messages and error codes."""
    others = [service for service in found_services(root, having="__init__.py") if service != like]
    return {word for other in others for word in (other, *own_wire_names(root / "services" / other))}


def own_wire_names(service: Path) -> set[str]:
    """The first words of its commands' and events' names, such as order of order.placed."""
    return {name for module in _OWN_MESSAGES for name in wire_names(service / module)}


def wire_names(module: Path) -> list[str]:
    """The first words of the names of the messages that it declares, or has made; none if it does not exist."""
    return _WIRE_NAME.findall(module.read_text()) if module.exists() else []


def _is_neighbour(module: Path) -> bool:
    """Whether it re-declares messages of another service."""
    return module.parent.name == "contracts"


def _classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _kept(source: str, foreign: Set[str], *, whole: bool) -> list[Span]:
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


def _between(text: str, kept: Iterable[Span], rename: Rename) -> str:
    parts, end = [], 0
    for start, stop in kept:
        if start >= end:
            parts += [rename(text[end:start]), text[start:stop]]
            end = stop
    return "".join([*parts, rename(text[end:])])
