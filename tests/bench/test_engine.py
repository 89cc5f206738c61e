"""The benchmark runs and writes its file in the documented form; no test judges its speed."""

import itertools
import json
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import cli, race
from bench.begin import numbered
from bench.lab import Lab, input_topic
from bench.peers import PeerMissing
from bench.progress import Group, Sample, steady
from bench.report import Report, Result
from bench.sides.engine import RawCodec, processor, routes
from bench.speed import Load, engine
from bench.topology import engine_topology
from shared.dev.stages import StageFailed
from shared.engine.wiring import wired
from shared.http.api import create_api
from shared.testing.node import MemoryNode

WHAT = ("engine", "decide", "restore", "http", "growth", "scale", "parts")
ENGINE_RATIOS = {
    f"{raw}engine_vs_{other}{wide}"
    for raw in ("", "raw_")
    for other in ("stock_faust", "quix_eos", "kafka_streams_eos")
    for wide in ("", "_wide")
}
OTHER_RATIOS = {"most_events_vs_fewest"} | {
    name + wide
    for name in (
        "decide_vs_fold",
        "decide_vs_kafka_streams_eos",
        "restore_vs_stock_faust",
        "restore_vs_kafka_streams",
        "get_vs_bare_fastapi",
        "two_workers_vs_one",
    )
    for wide in ("", "_wide")
}


def test_the_figures_of_before_a_failure_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*_: object) -> Report:
        raise StageFailed("a side has ended", "see its log")

    monkeypatch.setattr(signal, "signal", lambda *_: None)  # not this process's
    monkeypatch.setattr(cli, "Lab", nullcontext)
    monkeypatch.setitem(cli.BENCHMARKS, "engine", lambda *_: Report([Result("engine", {"events_per_s": 7})]))
    monkeypatch.setitem(cli.BENCHMARKS, "http", fails)
    ran = CliRunner().invoke(cli.cli, ["engine", "http", "--json", str(tmp_path / "figures.json")])
    assert "a side has ended" in ran.output
    assert ran.exit_code != 0
    assert json.loads((tmp_path / "figures.json").read_text())["results"] == [{"name": "engine", "events_per_s": 7}]


def missing() -> list[str]:
    raise PeerMissing("there is no `mvn` on the PATH")


@pytest.mark.broker
@pytest.mark.long
def test_peers_that_cannot_be_built_are_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(race, "PEERS", dict.fromkeys(race.PEERS, missing))
    with Lab(tmp_path / "lab") as lab:
        report = engine(lab, numbered(), Load(events=2_000, keys=10, wide_keys=20, rounds=1))
    report.write(tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())
    measured = [name + suffix for suffix in ("", "_wide") for name in ("stock_faust", "engine_raw", "engine")]
    assert [result["name"] for result in figures["results"]] == measured
    assert all(result["events_per_s"] > 0 for result in figures["results"])
    assert figures["ratios"].keys() == {name for name in ENGINE_RATIOS if "stock_faust" in name}
    assert figures["notes"] == [
        f"{name} is left out: there is no `mvn` on the PATH" for name in ("quix_eos", "kafka_streams_eos")
    ]
    assert figures["machine"]["cpus"] >= 1


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_documented_figure_is_measured_and_drawn(tmp_path: Path) -> None:
    sizes = ["--events", "2000", "--keys", "10", "--wide-keys", "400", "--rounds", "1"]
    outputs = ["--json", str(tmp_path / "figures.json"), "--plots", str(tmp_path / "plots")]
    done = subprocess.run([sys.executable, "-m", "bench", *WHAT, *sizes, *outputs], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["notes"] == []
    assert figures["ratios"].keys() == ENGINE_RATIOS | OTHER_RATIOS
    assert all(ratio > 0 for ratio in figures["ratios"].values())
    measured = {result["name"] for result in figures["results"]}
    assert measured >= {"part_read_row", "part_write_row", "part_produce_row", "part_decode_outcome"}
    assert measured >= {"get_idle_wide", "get_busy_wide", "post_to_201_wide", "engine_by_2_wide"}
    restored = {result["name"]: result["records"] for result in figures["results"] if "records" in result}
    once = restored["restore_engine_beside_stock_faust_wide"] / restored["restore_stock_faust_wide"]
    assert 1 <= once < 2  # a record of each key; markers count, too
    drawn = {file.name for file in (tmp_path / "plots").iterdir()}
    assert drawn == {"speed.svg", "speed_wide.svg", "restore.svg", "growth.svg", "parts.svg"}


def test_start_up_and_the_end_of_the_input_are_not_measured() -> None:
    samples = [
        Sample(at_s, handled) for at_s, handled in ((0, 0), (9, 100), (10, 200), (11, 300), (12, 400), (20, 500))
    ]
    measured = steady(samples, total=500)
    assert (measured.events, measured.seconds) == (300, 3)


def test_a_system_that_makes_no_more_progress_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()
    monkeypatch.setattr(Group, "handled", lambda _: min(next(looks), 2))
    began = time.monotonic()

    def alive() -> None:
        assert time.monotonic() < began + 5

    samples = Group("nowhere:1", "group", "topic", 1).samples(3, limit_s=0.2, alive=alive)
    assert [sample.handled for sample in samples] == [0, 1, 2]


def test_a_run_with_too_few_commits_is_measured_whole() -> None:
    measured = steady([Sample(0, 0), Sample(2, 10), Sample(4, 20)], total=20)
    assert measured.events_per_s == 5


@pytest.mark.parametrize(("work", "kind"), [("fold", "events"), ("raw", "events"), ("decide", "commands")])
def test_the_engines_own_side_is_wired_and_has_routes(work: str, kind: str) -> None:
    topology = engine_topology("b1", input_topic(kind, count=10, keys=2))
    assert wired(topology, [processor(work, topology)])
    assert create_api(MemoryNode(topology, []), routes).routes


def test_the_raw_engine_checks_no_row() -> None:
    raw = b'{"sequence":1,"state":{"count":0.5},"outcomes":{},"offset":0}'
    assert RawCodec().decode_whole(raw).state["count"] == 0.5


def test_figures_print_as_readable_lines() -> None:
    report = Report(ratios={"engine_vs_stock_faust": 41.26}, notes=["left out: Java is missing"])
    assert str(report).splitlines() == ["engine_vs_stock_faust        41.26", "left out: Java is missing"]
