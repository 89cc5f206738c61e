"""A parked record as it lies in the log, and the same command with the data that an operator gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Request
from msgspec import Raw
from msgspec.json import Decoder
from msgspec.structs import replace
from pydantic_core import from_json, to_json

from shared.domain.envelope import CommandEnvelope, encode
from shared.domain.errors import BadMessage
from shared.domain.ids import reference
from shared.domain.message import Command
from shared.domain.personal import SEALED, personal_fields
from shared.http.auth import caller_of
from shared.http.node import Node
from shared.http.problems import not_valid
from shared.http.refusals import Forbidden
from shared.parking.parked import Parked
from shared.privacy.sealing import sealer
from shared.topology.topics import Topic

_envelope: Any = CommandEnvelope  # typing knows of none with data that nobody has read
_read: Callable[[bytes], CommandEnvelope[Any]] = Decoder(_envelope[Raw]).decode


def check_contents(request: Request, service: str, right: str) -> None:
    """Contents of records are for whoever may see, or change, anybody's rows of the service. Raises Forbidden."""
    if (caller := caller_of(request)) is not None:
        caller.check_scope(f"{service}:{right}")
        caller.check_scope(f"{service}:any")


def may_see_contents(request: Request, service: str) -> bool:
    try:
        check_contents(request, service, "read")
    except Forbidden:
        return False
    return True


class Corrections:
    """Of the commands to the service's aggregates. Its methods raise NotReady."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sealer = sealer(node.settings)
        self._table = next((table for table in node.topology.tables if table.is_of_commands), None)

    async def value(self, parked: Parked) -> bytes | None:
        """The first record's; None if it has none. Raises LogBegins if retention has removed it."""
        (value,) = await self._node.records(Topic(parked.topic), parked.partition, [parked.offset])
        return value

    def command_in(self, parked: Parked, value: bytes | None) -> CommandEnvelope[Any] | None:
        """The command, with its data Raw, if they are an object, and all that this release lacks to decide it."""
        of_commands = self._table and (self._table.name, self._table.source.name)
        if value is None or self._node.decider is None or of_commands != (parked.processor, parked.topic):
            return None
        try:
            found = _read(value)
            data = from_json(bytes(found.data))  # msgspec lets bytes outside UTF-8 pass in what is Raw
        except (ValueError, RecursionError):
            return None
        is_known = self._node.decider.command_codec.knows(found.type, found.schema_version)
        is_of_key = self._node.partition(found.aggregate_id.encode()) == parked.partition
        return found if is_known and is_of_key and isinstance(data, dict) else None

    async def corrected(self, parked: CommandEnvelope[Any], data: dict[str, Any]) -> CommandEnvelope[Command]:
        """The same command with other data, and the personal ones among them encrypted.

        Raises RequestValidationError for data that no command of this type has, and Forgotten.
        """
        assert self._node.decider is not None
        codec = self._node.decider.command_codec
        try:
            envelope = codec.decode(encode(replace(parked, data=Raw(to_json(data)))))
            sealed = replace(envelope, data=await self._sealed(envelope.data, parked))
            return codec.decode(encode(sealed))
        except (BadMessage, ValueError, RecursionError) as error:
            raise not_valid("body", "data", str(error)) from None

    async def _sealed(self, command: Command, parked: CommandEnvelope[Any]) -> Command:
        """With its personal fields encrypted; those that are as they were are so already. Raises ValueError."""
        before = from_json(bytes(parked.data)).values()  # an upcaster may have renamed it
        kept = {
            name: text
            for name in personal_fields(type(command))
            if (text := getattr(command, name)) is not None and text.startswith(SEALED) and text in before
        }
        person = reference(self._node.topology.service, parked.aggregate_id)
        sealed = await self._sealer.sealed(command.model_copy(update=dict.fromkeys(kept)), person)
        return sealed.model_copy(update=kept)
