"""What the page on operations says of the doctor is what it finds."""

from __future__ import annotations

import re
from pathlib import Path

from shared.runtime.checkout import CHECKOUT


def test_every_code_is_explained() -> None:
    modules = (CHECKOUT / "shared" / "doctor").glob("*.py")
    codes = {code for module in modules for code in re.findall(r'^ +"([a-z]+\.[a-z]+)",$', module.read_text(), re.M)}
    assert len(codes) == 35
    page = Path(CHECKOUT, "docs", "operations.md").read_text()
    assert [code for code in sorted(codes) if f"`{code}`" not in page] == []
