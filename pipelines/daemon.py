"""What Spark forks its Python workers from on one machine: it has imported what nearly every task needs."""

import runpy
import sys

if __name__ == "__main__":
    # Spark adds its jars and copies of pyspark, whose directories Python 3.11 reads again before each task
    sys.path[:] = [entry for entry in sys.path if not entry.endswith((".jar", ".zip"))]
    sys.path_importer_cache.clear()

    import pipelines.backfill
    import pipelines.consistency  # noqa: F401

    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
