"""Kafka's own command-line tools, from its jars: they also do what no client for Python can."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shared.domain.errors import OnefoldError
from shared.kafka.access import java_flags, java_options
from shared.runtime.jars import KAFKA_JARS, TOOL_JARS, fetch_jars
from shared.runtime.java import as_properties, find_java

TOOLS = {
    "configs": "kafka.admin.ConfigCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
}
"""Main classes, by the names of Kafka's scripts without `kafka-`."""

_QUIET = "-Donefold.level=ERROR"  # else their logs are among what they print


class ToolFailed(OnefoldError):
    """One of Kafka's tools could not do what it was asked for.

    Operator action: run it by `kafka TOOL …`; it says why.
    """


def run_tool(tool: str, arguments: Sequence[str], bootstrap: str) -> int:
    """Runs one of TOOLS as this process's principal, and returns its exit code.

    Raises JavaUnavailable or JarsUnavailable.
    """
    with _command(tool, arguments, bootstrap) as command:
        return subprocess.run(command).returncode


def tool_table(tool: str, arguments: Sequence[str], bootstrap: str) -> list[dict[str, str]]:
    """The rows of the table that the tool prints, by its headings. Raises as `run_tool` does, and ToolFailed."""
    with _command(tool, arguments, bootstrap) as command:
        run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise ToolFailed(f"kafka {tool} {arguments[0]}: {run.stderr.strip() or run.stdout.strip()}")
    head, *rows = ([cell.strip() for cell in line.split("\t")] for line in run.stdout.splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


@contextmanager
def _command(tool: str, arguments: Sequence[str], bootstrap: str) -> Iterator[list[str]]:
    java, jars = find_java(), [*fetch_jars(KAFKA_JARS), *fetch_jars(TOOL_JARS)]
    with tempfile.TemporaryDirectory() as folder:  # which nobody else can read: it has a password
        config = Path(folder, "client.properties")
        config.write_text(as_properties(java_options(bootstrap)))
        access = ["--bootstrap-server", bootstrap, "--command-config", str(config)]
        yield [*java.kafka(jars, [_QUIET, *java_flags()]), TOOLS[tool], *access, *arguments]
