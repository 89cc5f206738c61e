"""The demo reports what Spark finds; when Spark cannot run, it says why and does not fail."""

from __future__ import annotations

import subprocess

import pytest

from demo import spark
from demo.spark import Checked, parity
from shared.dev.stages import StageFailed


def answering(monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str = "") -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], code, out, err))


def test_agreement_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, 0, "2 of 2 accounts agree\nSpark and the live tables agree: 2 of 2 accounts\n")
    assert parity("broker:9092") == Checked("Spark and the live tables agree: 2 of 2 accounts")


def test_a_difference_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "Spark and the live tables DIFFER: 1 of 2 accounts agree"
    answering(monkeypatch, 1, f"1 of 2 accounts agree\n{line}\n")
    assert parity("broker:9092") == Checked(line, (line,))


def test_a_traceback_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, 1, "", "Traceback (most recent call last):\n  …\nKeyError: 'x'\n")
    assert parity("broker:9092").problems == ("KeyError: 'x'",)


def test_a_spark_that_does_not_start_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, 2, "", "java is Java 24; Spark 4.0 runs on Java 17 to 23.\n")
    assert parity("broker:9092") == Checked("Spark was left out: java is Java 24; Spark 4.0 runs on Java 17 to 23.")


def test_packages_that_cannot_be_installed_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object) -> None:
        raise StageFailed("the package index does not answer", "check the network")

    monkeypatch.setattr(spark, "find_spec", lambda _: None)
    monkeypatch.setattr(spark, "ensure", offline)
    assert spark.install() == "the package index does not answer"


def test_installed_packages_are_not_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "find_spec", lambda _: object())
    monkeypatch.setattr(spark, "ensure", None)
    assert spark.install() is None
