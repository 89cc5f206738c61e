"""Where this checkout is, and which services it has: their folders say so, no list does.

Standard library only, as `replay` imports it on any packages.
"""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def found_services(checkout: Path = CHECKOUT, having: str = "app.py") -> list[str]:
    """The folders of `services` with the file `having`, sorted; by default those that have workers."""
    return sorted(file.parent.name for file in (checkout / "services").glob(f"*/{having}"))
