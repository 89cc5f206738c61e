"""`remove-demo`: removes what demonstrates Onefold; the engine, its tests and one service to copy stay.

`accounts` stays, because the next service is copied from it, and the tests of the pipelines use it. A test is removed
when it imports, directly or through others, something that is removed.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.dev.git import check_clean, git
from shared.dev.stages import StageFailed
from shared.runtime.checkout import found_services

SERVICES = ("inventory", "orders", "pickups", "sales")
_FOLDERS = (
    "demo",
    *(f"{parent}/{service}" for service in SERVICES for parent in ("services", "tests/unit")),
    *("tests/compose", "tests/demo", "tests/readme", "tests/shop", "tests/unit/shop"),
)
_FILES = (
    "docs/tutorials/recovering-from-a-bug.md",
    "shared/dev/new_project.py",
    "shared/dev/remove_demo.py",
    "shared/dev/verbs/shop.py",
    "tests/scaffold/test_new_project.py",
    "tests/scaffold/test_remove_demo.py",
    "tests/scaffold/test_two_processes.py",
)

_ENTRY = r'(?<=[\[( ])"demo", '
_USAGE = r"^  {}(?: [^\n]*)?\n(?:   +[^\n]*\n)*"
_EDITS = (
    (".dockerignore", r"^!demo\n", ""),
    ("Dockerfile", r" `demo` sends it traffic,", ""),
    ("Dockerfile", r"^FROM worker AS demo\n(?:.+\n)*\n?", ""),
    ("Makefile", r"(?<=help )demo ", ""),
    ("Makefile", r"^demo:.*\n(?:\t.*\n)*", ""),
    ("README.md", r"^python3 dev\.py demo\n", ""),
    ("dev.py", _USAGE.format("demo"), ""),
    ("dev.py", _USAGE.format("failover-drill"), ""),
    ("dev.py", _USAGE.format("new-project"), ""),
    ("dev.py", _USAGE.format("remove-demo"), ""),
    ("dev.py", r'^    "failover-drill": .*\n', ""),
    ("dev.py", r"`python3 dev\.py demo` on a fresh clone shows everything; ", ""),
    ("dev.py", r"dev\.py demo`", "dev.py test`"),
    ("docker-compose.yml", r"(?:^  #.*\n)?^  demo:\n(?:    .*\n)+\n?", ""),
    ("docs/deployment.md", r"^(?:docker compose run --rm demo|\| `demo` \|).*\n", ""),
    ("docs/deployment.md", r"^`tests/compose/run` proves(?:.+\n)+\n", ""),
    ("pyproject.toml", _ENTRY, ""),
    ("pyproject.toml", r'^"demo/\*" = .*\n', ""),
    ("pyproject.toml", r" # the CLI may start the demo.*", ""),
    ("services/compose.yml", rf"^  - \"(?:{'|'.join(SERVICES)})/.*\n", ""),
    ("services/prometheus.yml", rf"^ +- \{{names: \[(?:{'|'.join(SERVICES)})\].*\n", ""),
    ("shared/dev/cli.py", r'^    "shared\.dev\.verbs\.shop": .*\n', ""),
    ("shared/dev/replay.py", r"^from shared\.dev import new_project, remove_demo\n", ""),
    ("shared/dev/replay.py", r'^        case \{"verb": "new-project".*\n.*\n', ""),
    ("shared/dev/replay.py", r'^        case \{"verb": "remove-demo".*\n.*\n', ""),
    ("shared/dev/stack.py", r"the demo, ", ""),
    ("shared/dev/embedded.py", r"the demo, ", ""),
    ("tests/architecture/test_doors.py", _ENTRY, ""),
    ("tests/conftest.py", r"^pytest\.register_assert_rewrite.*\n\n", ""),
    ("tests/conftest.py", r'folder = (.*)\n +return "demo" if.*', r"return \1"),
)
_MARKED = re.compile(r"(?:^<!-- demo -->\n.*?^<!-- /demo -->\n\n?)|<!-- demo -->.*?<!-- /demo -->", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Plan:
    """gone: what is removed. edited: new texts. missed: files that an edit no longer fits. dependent: services that
    exchange messages with a removed one.
    """

    gone: tuple[Path, ...]
    edited: dict[Path, str]
    missed: tuple[str, ...]
    dependent: tuple[str, ...]


def plan(root: Path, also: Iterable[str] = ()) -> Plan:
    """Raises StageFailed when git could not bring back what is removed. also: other paths to remove."""
    check_clean(root)
    found = planned(root, also)
    ignored = git(root, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--", *found.gone).split("\0")
    if kept := [path for path in ignored if path and "__pycache__" not in path]:
        raise StageFailed(f"git ignores what would be removed: {', '.join(kept[:3])}", "move it elsewhere")
    return found


def planned(root: Path, also: Iterable[str] = ()) -> Plan:
    gone = [path for name in (*_FOLDERS, *_FILES, *also) if (path := root / name).exists()]
    gone += tests_of(root, gone)
    edited, missed = _edited(root, gone)
    return Plan(tuple(gone), edited, tuple(missed), tuple(_dependent(root)))


def carry_out(plan: Plan) -> None:
    for path, text in plan.edited.items():
        path.write_text(text)
    for path in plan.gone:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def tests_of(root: Path, gone: list[Path]) -> list[Path]:
    """Test modules that import what is removed, with those that import them in turn."""
    modules = {path: _imports(path) for path in sorted((root / "tests").rglob("*.py")) if not _is_in(path, gone)}
    names = {_module(root, path) for path in gone}
    tests: list[Path] = []
    while new := [
        path for path, found in modules.items() if path not in tests and _reaches({*found, _module(root, path)}, names)
    ]:
        tests += new
        names |= {_module(root, path.parent if path.name == "conftest.py" else path) for path in new}
    return tests


def _is_in(path: Path, folders: list[Path]) -> bool:
    return any(path == folder or folder in path.parents for folder in folders)


def _module(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts)


def _imports(path: Path) -> set[str]:
    return set(_imported(ast.parse(path.read_text())))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{name.name}" for name in names)


def _reaches(imports: set[str], names: set[str]) -> bool:
    return any(found == name or found.startswith(f"{name}.") for found in imports for name in names)


def _dependent(root: Path) -> Iterator[str]:
    topics = re.compile(rf'"(?:{"|".join(SERVICES)})\.')
    for service in found_services(root, having="service.py"):
        texts = (module.read_text() for module in (root / "services" / service).glob("*.py"))
        if service not in SERVICES and any(topics.search(text) for text in texts):
            yield service


def _edited(root: Path, gone: list[Path]) -> tuple[dict[Path, str], list[str]]:
    """New texts by path, and the edits that found nothing to change."""
    texts, missed = dict[Path, str](), list[str]()
    for path in [*root.glob("*.md"), *root.glob("docs/**/*.md")]:
        text = path.read_text()
        if (stripped := _MARKED.sub("", text)) != text:
            texts[path] = stripped
    for name, pattern, replacement in _EDITS:
        path = root / name
        if not path.exists() or _is_in(path, gone):
            continue
        text = texts.get(path) or path.read_text()
        texts[path], times = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        if not times:
            missed.append(name)
    return texts, missed
