"""The process that tests kill: `python -m tests.sinks.sinking`, which fills the sinks of the tests' own accounts."""

from shared.runtime.settings import load_settings
from shared.sinks.process import run
from tests.accounts.sinks import SINKS
from tests.accounts.topology import TOPOLOGY

if __name__ == "__main__":
    run(TOPOLOGY, SINKS, load_settings())
