"""Pictures of a console that runs: `python -m tests.console.pictures URL FOLDER`. The README's is made so."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.console.browser import Page, Screen, browser
from tests.waiting import eventually

SCREENS = {
    "console": Screen(1440, 900),
    "console-dark": Screen(1440, 900, "dark"),
    "console-phone": Screen(390, 844),
}


def take(page: Page, url: str, folder: Path) -> None:
    """Once the doctor has looked."""
    folder.mkdir(parents=True, exist_ok=True)
    page.open(url)
    eventually(lambda: page.text(".totals a"), lambda text: text and text != "examining")
    for name, screen in SCREENS.items():
        page.show(screen)
        page.photograph(folder / f"{name}.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as opened:
        take(opened, sys.argv[1], Path(sys.argv[2]))
