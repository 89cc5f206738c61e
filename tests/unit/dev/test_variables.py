from __future__ import annotations

from pathlib import Path

from shared.dev.variables import variables
from shared.runtime.settings import PREFIX, Settings

PAGE = Path(__file__).parents[3] / "docs" / "deployment.md"


def test_every_setting_has_a_row() -> None:
    lines = variables().splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == [f"{PREFIX}{name.upper()}" for name in Settings.model_fields]
    assert "| `ONEFOLD_LEAVE_ON_STOP` | `true` | true hands partitions over at once; " in "\n".join(lines)


def test_the_page_has_the_table_as_the_class_has_it() -> None:
    _, _, rest = PAGE.read_text().partition("<!-- python3 dev.py settings -->\n")
    table, _, _ = rest.partition("<!-- end -->")
    assert table.strip() == variables(), "put into docs/deployment.md what `python3 dev.py settings` prints"
