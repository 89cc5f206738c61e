"""The graph of `shared`'s rooms in docs/architecture.md: `python -m tests.architecture.rooms` draws it anew."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import grimp

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
_BLOCK = re.compile(r"(?<=```mermaid\n).*?(?=```)", re.DOTALL)


def drawn() -> str:
    """An arrow from each room to those it imports, without arrows that others imply; sorted."""
    imports = _imports()
    arrows = (f"    {room} --> {below}\n" for room in sorted(imports) for below in sorted(_direct(room, imports)))
    return "graph TD\n" + "".join(arrows)


def block(page: str) -> str:
    """The graph in the page."""
    found = _BLOCK.search(page)
    assert found is not None, f"{PAGE.name} has no graph of rooms"
    return found[0]


def _imports() -> Mapping[str, set[str]]:
    """What each room imports, by room; itself it may import, too."""
    graph = grimp.build_graph("shared")
    for room in graph.find_children("shared"):
        graph.squash_module(room)
    rooms = graph.find_children("shared")
    return {
        _name(room): {_name(each) for each in graph.find_modules_directly_imported_by(room) - {room}} for room in rooms
    }


def _name(module: str) -> str:
    return module.removeprefix("shared.")


def _direct(room: str, imports: Mapping[str, set[str]]) -> set[str]:
    return imports[room] - {far for near in imports[room] for far in _below(near, imports)}


def _below(room: str, imports: Mapping[str, set[str]]) -> set[str]:
    return imports[room].union(*(_below(each, imports) for each in imports[room]))


if __name__ == "__main__":
    PAGE.write_text(_BLOCK.sub(lambda _: drawn(), PAGE.read_text()))
