"""Spark starts on a Java that it supports, and on a cluster as on one machine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipelines import session
from pipelines.catalog import table_of
from pipelines.session import code_digest
from shared.dev.stack import Stack
from shared.runtime.java import Java
from tests.pipelines.conftest import latest, read_records

MAPPING = """
key = "customer"
at = "date"
order = ["CAST(line AS INT)"]

[[events]]
type = "account.opened"
where = "nth = 1"

[[events]]
type = "account.charged"
version = 2
data.amount_cents = "CAST(cents AS BIGINT)"
"""

MAPPED = """
import pathlib, sys
from pipelines import session
sys.prefix = sys.argv[1]
with session.spark_session("tests") as spark:
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    print(pathlib.Path(f"/proc/{java}/maps").read_text())
"""


def put_java(home: Path, stated: str) -> None:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    told = f'openjdk version "{stated}"'
    executable.write_text(f"#!/bin/sh\necho >> {home}/asked\necho '{told}' \"$@\" >&2\n")
    executable.chmod(0o755)


def test_a_java_too_new_for_spark_is_passed_over_and_the_other_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_java(tmp_path / "newest", "25.0.1")
    put_java(tmp_path / "older", "17.0.15")
    given = {"JAVA_HOME": f"{tmp_path}/newest", "PATH": f"{tmp_path}/older/bin", "XDG_CACHE_HOME": f"{tmp_path}/cache"}
    monkeypatch.setattr(os, "environ", given)
    monkeypatch.setattr(session, "fetch_jars", lambda _: [])
    session._own_settings("local[*]", "1g", None)
    assert (tmp_path / "older" / "asked").read_text() == "\n"
    java = Path(given["JAVA_HOME"], "bin", "java")
    run = subprocess.run([java, "-Xmx1g", "--add-modules=jdk.incubator.vector"], capture_output=True, text=True)
    unpacked = f"-Dorg.xerial.snappy.tempdir={java.parent} -DZstdTempFolder={java.parent}"
    assert run.stderr == f'openjdk version "17.0.15" {unpacked} -Xmx1g\n'


@pytest.mark.parametrize("master", ["local[*]", "local-cluster[2,1,1024]", "spark://spark.example:7077"])
def test_the_driver_leaves_loopback_for_a_cluster_only(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_shimmed", lambda _: Path("java"))
    monkeypatch.setattr(session, "fetch_jars", lambda _: [])
    monkeypatch.setattr(os, "environ", {})
    settings = session._own_settings(master, "1g", None)
    address = None if master.startswith("spark:") else "127.0.0.1"
    told = settings.get("spark.driver.host"), settings.get("spark.driver.bindAddress"), os.environ.get("SPARK_LOCAL_IP")
    assert told == (address,) * 3
    assert settings["spark.ui.enabled"] == "false"


def test_another_spark_of_this_machine_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_shimmed", lambda _: Path("java"))
    monkeypatch.setattr(session, "fetch_jars", lambda _: [])
    monkeypatch.setattr(os, "environ", {"SPARK_HOME": "/opt/spark-3.5", "SPARK_REMOTE": "sc://host"})
    session._own_settings("local[*]", "1g", None)
    assert os.environ.keys().isdisjoint({"SPARK_HOME", "SPARK_REMOTE"})


def test_a_checkout_may_have_a_space_in_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM's options are split at spaces."""
    monkeypatch.setattr(session, "_shimmed", lambda _: Path("java"))
    monkeypatch.setattr(session, "fetch_jars", lambda _: [])
    monkeypatch.setattr(session, "_LOG4J", Path("/my projects/onefold/log4j2.properties"))
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "my .venv"))
    (tmp_path / "my .venv").mkdir()
    options = session._own_settings("local[*]", "1g", None)["spark.driver.extraJavaOptions"]
    first, *others, quiet, leaving = shlex.split(options)
    assert first == "-Dlog4j2.configurationFile=file:///my%20projects/onefold/log4j2.properties"
    assert others == [*session._JVM]
    assert quiet.startswith("-Xlog:cds=off")
    assert leaving.startswith(f"-XX:ArchiveClassesAtExit={tmp_path / 'my .venv' / 'spark-classes-'}")


def test_classes_are_left_anew_only_for_a_heap_that_could_not_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    leaving = [session._classes(Java(Path("java"), 17), [], memory)[-1] for memory in ("1g", "31744M", "32g", "1t")]
    assert leaving[0] == leaving[1] != leaving[2] == leaving[3]


def test_no_task_reads_the_directories_of_archives(spark: Any) -> None:
    (path,) = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.path).collect()
    assert not [entry for entry in path if entry.endswith((".jar", ".zip"))]


@pytest.mark.long  # Spark starts without, too, in twice the time
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_first_session_leaves_its_classes_to_the_next(tmp_path: Path) -> None:
    program = [sys.executable, "-c", MAPPED, str(tmp_path)]
    mapped = [subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True).stdout for _ in range(2)]
    (archive,) = tmp_path.glob("spark-classes-*")
    assert [str(archive) in maps for maps in mapped] == [False, True]


@pytest.mark.parametrize("file", ["services/shop/evolve.py", "shared/domain/state.py", "pipelines/folds.py"])
def test_a_changed_file_changes_the_digest_of_the_code(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    digests = []
    for code in ("1", "2"):
        (tmp_path / file).write_text(code)
        digests += [code_digest("services.shop", tmp_path), code_digest("services.shop", tmp_path)]
    assert digests[0] == digests[1] != digests[2] == digests[3]


@pytest.mark.long
def test_a_cluster_comes_to_the_same_verdict(stack: Stack) -> None:
    url = stack.urls("accounts")[0]
    httpx.post(f"{url}/accounts/clustered").raise_for_status()
    verb = [sys.executable, "-m", "pipelines", "parity", "accounts", "--master", "local-cluster[2,1,1024]"]
    run = subprocess.run([*verb, "--bootstrap", stack.bootstrap], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1].startswith("Spark and the live tables agree: ")


@pytest.mark.long  # in short, what a run left that died is completed, in test_backfill
@pytest.mark.timeout(1800)
def test_tasks_that_a_cluster_runs_again_write_nothing_twice(bootstrap: str, tmp_path: Path) -> None:
    (tmp_path / "mapping.toml").write_text(MAPPING)
    rows = [f"{number},customer-{number % 9},1997-01-{1 + number // 9:02},{number}" for number in range(180)]
    (tmp_path / "rows.csv").write_text("\n".join(["line,customer,date,cents", *rows]))
    verb = (
        "import sys, pathlib; from tests.pipelines.clustered import main; main(sys.argv[1], pathlib.Path(sys.argv[2]))"
    )
    run = subprocess.run([sys.executable, "-c", verb, bootstrap, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    events = {f"customer-{number}": 21 for number in range(9)}
    told = json.loads(run.stdout.splitlines()[-1])
    assert told.pop("died") > 3
    assert told == {"written": 189, "archived": 189, "rebuilt": 9, "broken": [], "events": events}
    changelog = table_of("accounts", "accounts").changelog
    rebuilt = latest(read_records(bootstrap, changelog.replace("accounts-", "accounts-v2-", 1)))
    assert rebuilt == latest(read_records(bootstrap, changelog))
