"""python3 dev.py bench [WHAT …] [--json FILE]"""

from bench.cli import cli

cli(prog_name="python3 dev.py bench")
