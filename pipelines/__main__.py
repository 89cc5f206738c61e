"""python -m pipelines VERB: what looks at all of history, on Spark."""

from pipelines.cli import main

main()
