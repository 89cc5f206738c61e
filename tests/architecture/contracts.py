"""Two kinds of import contract ("door") that import-linter lacks. pyproject.toml declares the contracts."""

from __future__ import annotations

import sys
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.domain.helpers import module_expressions_to_modules

# Any, because import-linter's field descriptors have no types
_MODULES: Any = fields.ListField(subfield=fields.ModuleExpressionField())
_NO_MODULES: Any = fields.ListField(subfield=fields.ModuleExpressionField(), required=False, default=[])

# Clock, randomness, environment and I/O: a fold that uses them cannot be replayed.
_OUTSIDE = {
    *("asyncio", "concurrent", "ctypes", "getpass", "http", "io", "logging", "multiprocessing", "os", "pathlib"),
    *("platform", "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl"),
    *("subprocess", "sys", "tempfile", "threading", "time", "urllib"),
}


class _DirectImports(Contract):
    """Checks direct imports only. An import through a third module is checked by that module's own contract."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        illegal = [_described(graph, *pair) for pair in sorted(self._illegal(graph))]
        return ContractCheck(kept=not illegal, metadata={"illegal": illegal})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["illegal"]:
            output.print_error(line, bold=False)
        output.new_line()

    def _illegal(self, graph: ImportGraph) -> set[tuple[str, str]]:
        raise NotImplementedError


class OnlyFromContract(_DirectImports):
    """`packages` are imported only in `rooms`. The contract also holds while no module imports them."""

    type_name = "only_from"

    packages = _MODULES
    rooms = _MODULES

    def _illegal(self, graph: ImportGraph) -> set[tuple[str, str]]:
        rooms = _with_contents(graph, self.rooms)
        return {
            (importer, package)
            for package in _present(graph, self.packages)
            for importer in graph.find_modules_that_directly_import(package) - rooms
        }


class NothingButContract(_DirectImports):
    """`rooms` import nothing but each other, `allowed` and the standard library without `_OUTSIDE`.

    With `among`, only imports of those packages are checked. Of `facades`, what lies inside is not allowed.
    """

    type_name = "nothing_but"

    rooms = _MODULES
    allowed = _NO_MODULES
    among = _NO_MODULES
    facades = _NO_MODULES

    def _illegal(self, graph: ImportGraph) -> set[tuple[str, str]]:
        rooms = _with_contents(graph, self.rooms)
        judged = _with_contents(graph, self.among) if self.among else graph.modules
        allowed = _with_contents(graph, self.allowed) | _present(graph, self.facades)
        legal = rooms | allowed | (sys.stdlib_module_names - _OUTSIDE)
        return {
            (room, imported)
            for room in rooms
            for imported in (graph.find_modules_directly_imported_by(room) & judged) - legal
        }


def _described(graph: ImportGraph, importer: str, imported: str) -> str:
    details = graph.get_import_details(importer=importer, imported=imported)
    lines = ", ".join(f"l.{detail['line_number']}" for detail in details)
    return f"-   {importer} -> {imported} ({lines})"


def _present(graph: ImportGraph, expressions: object) -> set[str]:
    modules = module_expressions_to_modules(graph, expressions)  # type: ignore[arg-type]
    return {module.name for module in modules} & graph.modules


def _with_contents(graph: ImportGraph, expressions: object) -> set[str]:
    named = _present(graph, expressions)
    ours = (module for module in named if not graph.is_module_squashed(module))
    return named.union(*(graph.find_descendants(module) for module in ours))
