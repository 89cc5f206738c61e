"""Which partition a key belongs to: Kafka's murmur2, the hash of the Java client, aiokafka and Spark."""

from __future__ import annotations

import struct
from functools import lru_cache

from shared.domain.errors import BadMessage
from shared.domain.ids import check_aggregate_id

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_UINT32 = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The unsigned 32-bit hash that org.apache.kafka.common.utils.Utils.murmur2 gives."""
    length = len(data)
    whole = length & ~3
    digest = _SEED ^ length
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = word * _MULTIPLIER & _UINT32
        digest = (digest * _MULTIPLIER ^ (mixed ^ mixed >> 24) * _MULTIPLIER) & _UINT32
    if whole != length:
        digest = (digest ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _UINT32
    digest = (digest ^ digest >> 13) * _MULTIPLIER & _UINT32
    return digest ^ digest >> 15


@lru_cache(16_384)  # asked several times for each command, by those who take it and those who read it
def partition_of(key: bytes, partitions: int) -> int:
    """The partition, 0 ≤ p < partitions, that every murmur2 producer sends `key` to."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def check_home(key: bytes, partition: int, partitions: int) -> None:
    """Raises BadMessage unless `key` is an aggregate id that belongs to `partition`: no read would find its row."""
    try:
        check_aggregate_id(key.decode())
    except ValueError as error:
        raise BadMessage(f"its key is no aggregate id: {error}") from error
    home = partition_of(key, partitions)
    if home != partition:
        raise BadMessage(f"in partition {partition}, but its key belongs to {home}: sent without murmur2?")
