"""Each record is one line, JSON for machines, and never shows the values of a traceback's variables."""

import json
import logging
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import structlog

from shared.runtime.logs import configure_logging
from shared.runtime.settings import Settings


@pytest.fixture(autouse=True)
def _restore_structlog() -> Iterator[None]:
    structured = structlog.get_config()
    yield
    structlog.configure(**structured)


def log_something(log_format: Literal["auto", "console", "json"]) -> None:
    configure_logging(Settings(log_format=log_format))
    structlog.get_logger("shared.engine").info("flushed", correlation_id="c-1", records=3)
    logging.getLogger("faust").warning("a library says %s", "hello")
    structlog.get_logger("shared.engine").debug("too fine")
    try:
        card_number = "4111-1111"
        raise ValueError(len(card_number))
    except ValueError:
        structlog.get_logger("shared.engine").exception("crashed")


@pytest.mark.parametrize("log_format", ["json", "auto"])
def test_outside_a_terminal_each_record_is_one_json_object(
    capsys: pytest.CaptureFixture[str], log_format: Literal["auto", "json"]
) -> None:
    log_something(log_format)
    flushed, library, crashed = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert _without_time(flushed) == {
        "event": "flushed",
        "level": "info",
        "logger": "shared.engine",
        "correlation_id": "c-1",
        "records": 3,
    }
    assert _without_time(library) == {"event": "a library says hello", "level": "warning", "logger": "faust"}
    assert crashed["exception"].endswith("ValueError: 9")
    assert "4111" not in crashed["exception"]


def test_the_console_format_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    log_something("console")
    said = capsys.readouterr().err
    assert "[info     ] flushed" in said
    assert "correlation_id=c-1" in said
    assert said.rstrip().endswith("ValueError: 9")


def _without_time(record: dict[str, Any]) -> dict[str, Any]:
    assert record.pop("timestamp").endswith("Z")
    return record
