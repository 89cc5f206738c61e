"""The client settings every producer of the system shares."""

from __future__ import annotations

from typing import Any


def producer_config(bootstrap: str, **extra: Any) -> dict[str, Any]:
    """librdkafka settings that neither lose, repeat nor reorder, and that hash keys as Java does.

    extra: further settings, with underscores for dots (`transactional_id="accounts-1"`).
    """
    return {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        # librdkafka's own default is CRC32, which sends a key elsewhere than Java, aiokafka and Spark do
        "partitioner": "murmur2_random",
    } | {name.replace("_", "."): value for name, value in extra.items()}
