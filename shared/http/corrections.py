"""A parked record as it lies in the log, and the command that an operator makes of it with other data."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fastapi import Request
from msgspec.structs import replace
from pydantic_core import from_json, to_json

from shared.domain.errors import BadMessage
from shared.domain.ids import derived_id, reference
from shared.domain.message import Command
from shared.domain.personal import SEALED, personal_fields
from shared.http.auth import caller_of
from shared.http.node import Node
from shared.http.problems import not_valid
from shared.parking.parked import Parked
from shared.privacy.sealing import sealer
from shared.topology.topics import Topic

_KEPT = ("type", "schema_version", "aggregate_id", "issued_at", "correlation_id")
"""What the new command has in common with the one that was parked: it belongs to the same story, at the same time."""

Fields = dict[str, Any]


def check_contents(request: Request, service: str, right: str) -> None:
    """Contents of records are for whoever may see, or change, anybody's rows of the service. Raises Forbidden."""
    if (caller := caller_of(request)) is not None:
        caller.check_scope(f"{service}:{right}")
        caller.check_scope(f"{service}:any")


class Corrections:
    """Of the commands to the service's aggregates. Its methods raise NotReady."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sealer = sealer(node.settings)
        self._topic = next((table.source for table in node.topology.tables if table.is_of_commands), None)

    async def value(self, parked: Parked) -> bytes:
        """The first record's. Raises LogBegins if retention has removed it."""
        (value,) = await self._node.records(Topic(parked.topic), parked.partition, [parked.offset])
        return value

    def command_in(self, parked: Parked, value: bytes) -> Fields | None:
        """The envelope, if the record is one of this service's commands, whatever its data are."""
        if self._topic is None or parked.topic != self._topic.name:
            return None
        with suppress(ValueError):
            found = from_json(value)
            if isinstance(found, dict) and {*_KEPT, "command_id"} <= found.keys() and type(found.get("data")) is dict:
                return found
        return None

    async def send(self, parked: Parked, before: Fields, data: Fields) -> str:
        """Appends the corrected command, and returns its id, which is the same for each correction of this record.

        Raises RequestValidationError for data that no command of this type has, and Forgotten.
        """
        assert self._topic is not None
        assert self._node.decider is not None
        codec = self._node.decider.command_codec
        corrected = {
            **{name: before[name] for name in _KEPT},
            "command_id": derived_id("corrected", parked.topic, str(parked.partition), str(parked.offset)),
            "causation_id": before["command_id"],
            "data": data,
        }
        try:
            envelope = codec.decode(to_json(corrected))
            sealed = replace(envelope, data=await self._sealed(envelope.data, before))
        except (BadMessage, ValueError) as error:
            raise not_valid("body", "data", str(error)) from None
        await self._node.append(self._topic, sealed.aggregate_id.encode(), codec.encode(sealed))
        return sealed.command_id

    async def _sealed(self, command: Command, before: Fields) -> Command:
        """With its personal fields encrypted; those that are as they were are so already. Raises ValueError."""
        kept = {
            name: text
            for name in personal_fields(type(command))
            if (text := getattr(command, name)) is not None
            and text.startswith(SEALED)
            and text == before["data"].get(name)
        }
        person = reference(self._node.topology.service, before["aggregate_id"])
        sealed = await self._sealer.sealed(command.model_copy(update=dict.fromkeys(kept)), person)
        return sealed.model_copy(update=kept)
