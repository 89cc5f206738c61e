"""Copies partitions by whole batches, as their leaders keep them: no record is unpacked, so a copy costs little.

A batch keeps the numbers that an idempotent producer gave it. So one that is sent again, as its answer was lost, is not
written again.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, LeaderNotAvailableError, NoError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest

from shared.kafka.access import ABSENT_FIX, ANSWER_S
from shared.kafka.brokers import SETTLE_DEADLINE_S, BrokersUnavailable, Positions
from shared.runtime.positions import Place

_ANSWER_MS = int(ANSWER_S * 1000)
_BYTES = 8 << 20  # of a partition at once
_AT_ONCE = 4  # partitions
_PAUSE_S = 0.1
_HEAD = struct.Struct(">qi11xi30xi")  # first offset, length of what follows, the last offset's delta, number of records
_OFFSET, _FOLLOWS = 8, 12
_FROM_0 = bytes(_OFFSET)  # brokers take no batch that begins elsewhere, and number its records themselves


def copy_batches(
    client: Mapping[str, Any], source: str, target: str, ends: Positions, tell: Callable[[int], object]
) -> None:
    """All records of the topic, which begin at offset 0, to the same partitions of another, which is empty.

    client: `aiokafka_config` of its brokers. ends: of each partition; no transaction wrote there. tell: called with how
    many records were written since it was called last. Raises BrokersUnavailable.
    """
    asyncio.run(_Copy(source, target, tell).all(client, ends))


class _Copy:
    _client: AIOKafkaClient

    def __init__(self, source: str, target: str, tell: Callable[[int], object]) -> None:
        self._source = source
        self._target = target
        self._tell = tell

    async def all(self, client: Mapping[str, Any], ends: Positions) -> None:
        self._client = AIOKafkaClient(**client)
        slots = asyncio.Semaphore(_AT_ONCE)

        async def copy(number: int, end: int) -> None:
            async with slots:
                await self._partition(number, end)

        try:
            await self._client.bootstrap()
            await self._client.set_topics([self._source, self._target])
            await asyncio.gather(*(copy(number, end) for number, end in ends.items()))
        except KafkaError as failure:
            raise BrokersUnavailable(f"{client['bootstrap_servers']}: {failure!r}; {ABSENT_FIX}") from failure
        finally:
            await self._client.close()

    async def _partition(self, number: int, end: int) -> None:
        at = 0
        while at < end:
            asked = [(self._source, [(number, at, _BYTES)])]
            found = await self._answer(Place(self._source, number), FetchRequest(_ANSWER_MS // 2, 1, _BYTES, 0, asked))
            for following, records, batch in _batches(found[-1]):
                write = ProduceRequest(None, -1, _ANSWER_MS // 2, [(self._target, [(number, batch)])])
                await self._answer(Place(self._target, number), write)
                self._tell(records)
                at = following

    async def _answer(self, place: Place, request: Any) -> Any:
        """What the partition's leader answers, who may change meanwhile: its number, an error code, and more."""
        deadline = time.monotonic() + SETTLE_DEADLINE_S
        while True:
            try:
                leader = self._client.cluster.leader_for_partition(TopicPartition(*place))
                if leader is None or leader < 0:
                    raise LeaderNotAvailableError
                ((_, (answer,)),) = (await self._client.send(leader, request)).topics
                if (error := for_code(answer[1])) is NoError:
                    return answer
                raise error
            except KafkaError as failure:
                if not failure.retriable or time.monotonic() > deadline:
                    raise BrokersUnavailable(f"{place}: {failure!r}; fix: do this again") from failure
            await asyncio.sleep(_PAUSE_S)
            await self._client.force_metadata_update()


def _batches(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(offset behind it, number of records, what to write) of each batch; the last may be cut off, and is left out."""
    at = 0
    while at + _HEAD.size <= len(data):
        first, length, delta, records = _HEAD.unpack_from(data, at)
        end = at + _FOLLOWS + length
        if end > len(data):
            break
        yield first + delta + 1, records, _FROM_0 + data[at + _OFFSET : end]
        at = end
