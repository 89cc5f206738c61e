"""AsyncAPI 3 documents of what services read and write on topics, from their topologies and message types."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from msgspec import Raw
from msgspec.json import schema_components
from pydantic.json_schema import models_json_schema

from shared.domain.envelope import CommandEnvelope, EventEnvelope
from shared.domain.message import Command, Message
from shared.engine.processors import AggregateProcessor, PolicyProcessor, Processor
from shared.engine.wiring import topics_of
from shared.runtime.declared import declared
from shared.topology.topics import Topic, Topology

Json = dict[str, Any]
_SCHEMA = "#/components/schemas/{model}"


def document_of(service: str) -> Json:
    """The document of one service of this checkout."""
    app = import_module(f"services.{service}.app").app
    return described(app.topology, app.processors, declared(f"services.{service}", "service", "SERVICE").reads)


def described(topology: Topology, processors: Sequence[Processor], reads: Iterable[Topic] = ()) -> Json:
    """Every topic of the service, other services' that it reads or writes, and the messages it declares for them.

    reads: what no processor does, as a sink's source.
    """
    messages = _messages(processors)
    own = {topic.name: topic for topic in topology.all_topics()}
    read, written = topics_of(topology, processors, reads)
    types = sorted({message for found in messages.values() for message in found}, key=_wire_name)
    references, schemas = _schemas(types)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": topology.service,
            "version": "1",
            "description": "The key of every record is the aggregate id in UTF-8; murmur2 of it gives the partition.",
        },
        "defaultContentType": "application/json",
        "channels": {
            name: _channel(name, own.get(name), topology.partitions, messages.get(name, ()))
            for name in sorted(own.keys() | read | written)
        },
        "operations": {
            **{f"receive {name}": _operation("receive", name) for name in sorted(read)},
            **{f"send {name}": _operation("send", name) for name in sorted(written)},
        },
        "components": {
            "messages": {message.TYPE: _message(message, references[message]) for message in types},
            "schemas": schemas,
        },
    }


def _messages(processors: Iterable[Processor]) -> Mapping[str, Sequence[type[Message]]]:
    """The types declared by this service, by the topic that carries them."""
    found: dict[str, set[type[Message]]] = defaultdict(set)
    for processor in processors:
        if isinstance(processor, AggregateProcessor):
            found[processor.source.name].update(processor.decider.commands)
            found[processor.events.name].update(processor.decider.events)
        if isinstance(processor, PolicyProcessor):
            for topic, commands in processor.policy.commands.items():
                found[topic.name].update(commands)
    return {topic: sorted(types, key=_wire_name) for topic, types in found.items()}


def _wire_name(message: type[Message]) -> str:
    return message.TYPE


def _channel(name: str, topic: Topic | None, partitions: int, messages: Iterable[type[Message]]) -> Json:
    """topic: None for another service's, which describes it in its own document."""
    carried = {message.TYPE: {"$ref": f"#/components/messages/{message.TYPE}"} for message in messages}
    if topic is None:
        return {"address": name, "description": "Another service's; its document describes it.", "messages": carried}
    settings = {"cleanup.policy": topic.cleanup.split(","), "retention.ms": topic.retention_ms}
    kafka = {"topic": name, "partitions": partitions, "topicConfiguration": settings, "bindingVersion": "0.5.0"}
    return {
        "address": name,
        "messages": carried,
        "bindings": {"kafka": kafka},
    }


def _operation(action: str, channel: str) -> Json:
    return {"action": action, "channel": {"$ref": f"#/channels/{channel}"}}


def _message(message: type[Message], payload: Json) -> Json:
    return {
        "name": message.TYPE,
        "title": message.__name__,
        **({"description": message.__doc__} if message.__doc__ else {}),
        "payload": payload,
        "bindings": {"kafka": {"key": {"type": "string"}, "bindingVersion": "0.5.0"}},
    }


def _schemas(types: Sequence[type[Message]]) -> tuple[dict[type[Message], Json], Json]:
    """A reference for each type, and the schemas they refer to: the envelope with exactly this message in it."""
    inner, definitions = models_json_schema([(each, "validation") for each in types], ref_template=_SCHEMA)
    envelopes = {each.TYPE: _envelope(each, inner[each, "validation"]) for each in types}
    found = {each: {"$ref": _SCHEMA.format(model=each.TYPE)} for each in types}
    return found, definitions.get("$defs", {}) | envelopes


def _envelope(message: type[Message], data: Json) -> Json:
    kind: Any = CommandEnvelope if issubclass(message, Command) else EventEnvelope
    _, schemas = schema_components([kind[Raw]])
    (schema,) = schemas.values()
    exactly = {"type": {"const": message.TYPE}, "schema_version": {"const": message.VERSION}, "data": data}
    return {**schema, "title": message.__name__, "properties": schema["properties"] | exactly}
