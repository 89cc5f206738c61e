"""Records into a topic."""

from __future__ import annotations

from typing import Any

from shared.kafka.access import spark_options


def to_topic(writer: Any, bootstrap: str, topic: str) -> Any:
    """The writer of a batch or of a stream, with what no record is lost or repeated by; to be saved or started."""
    options = spark_options(bootstrap) | {"kafka.acks": "all", "kafka.enable.idempotence": "true"}
    return writer.format("kafka").options(**options).option("topic", topic)
