"""A process's log on standard error: readable lines in a terminal, elsewhere one JSON object per line."""

from __future__ import annotations

import logging.config
import sys
import traceback
from typing import Any

import structlog
from structlog.dev import ConsoleRenderer, plain_traceback
from structlog.processors import JSONRenderer, TimeStamper, format_exc_info
from structlog.stdlib import BoundLogger, LoggerFactory, ProcessorFormatter
from structlog.typing import EventDict, Processor

from shared.runtime.settings import Settings


def _without_colour(_: Any, __: str, record: EventDict) -> EventDict:
    record.pop("color_message", None)  # uvicorn's second rendering of the same message
    return record


_COMMON: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.ExtraAdder(),
    TimeStamper(fmt="iso", utc=True),
    _without_colour,
)


def configure_logging(settings: Settings) -> None:
    """Sends the logs of structlog and of the standard library through one formatter."""
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_COMMON, ProcessorFormatter.wrap_for_formatter],
        logger_factory=LoggerFactory(),
        wrapper_class=BoundLogger,
        cache_logger_on_first_use=True,
    )
    logging.config.dictConfig(logging_config(settings))


def logging_config(settings: Settings) -> dict[str, Any]:
    """The same for `logging.config.dictConfig`; Faust's worker replaces the handlers, so its app needs this too."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "onefold": {
                "()": ProcessorFormatter,
                "foreign_pre_chain": _COMMON,
                "processors": [ProcessorFormatter.remove_processors_meta, *_rendering(settings.log_format)],
            }
        },
        "handlers": {
            "onefold": {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "onefold"}
        },
        "root": {"level": "INFO", "handlers": ["onefold"]},
    }


def _rendering(log_format: str) -> list[Processor]:
    # tracebacks without local variables, which hold customers' keys, amounts and names
    terminal = sys.stderr.isatty()
    if log_format == "console" or (log_format == "auto" and terminal):
        return [ConsoleRenderer(colors=terminal, exception_formatter=plain_traceback)]
    return [format_exc_info, JSONRenderer()]


def trace_of(bug: Exception) -> str:
    """Where it happened and its type, for `exception` in the log: what it says may quote a record."""
    return "".join(traceback.format_tb(bug.__traceback__)) + type(bug).__name__
