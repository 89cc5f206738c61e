"""A command as one types it in the checkout of the second version of the tests' service: `NAME VERB ...`."""

from __future__ import annotations

import sys
from unittest.mock import patch

from shared.dev.cli import main
from tests.versions.tallies import tallies

if __name__ == "__main__":
    name = sys.argv.pop(1)
    with patch("shared.dev.versions.load_services", lambda: [tallies(2, name)]):
        main()
