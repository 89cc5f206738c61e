"""What an import contract cannot see: calls whose results differ from run to run, in modules that must be pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = (
    *("shared/domain/**/*.py", "shared/topology/**/*.py", "shared/parking/parked.py"),
    *(
        "services/*/domain/**/*.py",
        "services/*/contracts/**/*.py",
        "services/*/topology.py",
        "services/*/policies.py",
        "services/*/projections.py",
        "services/*/public.py",
        "services/*/service.py",
    ),
    "services/*/sinks.py",
)
FORBIDDEN = {"now", "utcnow", "today", "uuid1", "uuid4", "open", "input", "print", "eval", "exec", "__import__"}


def pure_modules() -> list[Path]:
    return sorted(path for room in ROOMS for path in ROOT.glob(room))


def impure_calls(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in FORBIDDEN:
                yield f"{name}, line {node.lineno}"


@pytest.mark.parametrize("module", pure_modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pure_module_makes_no_impure_call(module: Path) -> None:
    assert list(impure_calls(module.read_text())) == []


@pytest.mark.parametrize("call", ["datetime.now(UTC)", "date.today()", "uuid.uuid4()", "uuid4()", "open('x')"])
def test_an_impure_call_is_found(call: str) -> None:
    assert len(list(impure_calls(f"def decide():\n    return {call}\n"))) == 1
