"""AsyncAPI 3 documents of what services read and write on topics, from their topologies and message types."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from msgspec import Raw
from msgspec.json import schema_components
from pydantic.json_schema import models_json_schema

from shared.domain.envelope import CommandEnvelope, EventEnvelope
from shared.domain.message import Command, Message
from shared.engine.processors import AggregateProcessor, PolicyProcessor, Processor, PublicationProcessor
from shared.engine.wiring import topics_of
from shared.runtime.declared import declared
from shared.topology.publication import CONTENT_TYPE, public_type
from shared.topology.topics import Topic, Topology

Json = dict[str, Any]
_SCHEMA = "#/components/schemas/{model}"
_KAFKA = {"bindingVersion": "0.5.0"}
_ATTRIBUTES = ("specversion", "id", "source", "type", "subject", "time")


class Part(NamedTuple):
    """One service. reads: what no processor does, as a sink's source."""

    topology: Topology
    processors: Sequence[Processor]
    reads: Iterable[Topic] = ()


def document_of(*services: str) -> Json:
    """One document of these services of this checkout."""
    return described(*map(_part, services))


def _part(service: str) -> Part:
    app = import_module(f"services.{service}.app").app
    return Part(app.topology, app.processors, declared(f"services.{service}", "service", "SERVICE").reads)


def described(*parts: Part) -> Json:
    """Every topic of these services, others that they read or write, and the messages that are declared for them: by
    the topic's owner, or if that is none of these, by whoever writes there.
    """
    own = {topic.name: (topic, part.topology) for part in parts for topic in part.topology.all_topics()}
    used = {part.topology.service: topics_of(*part) for part in parts}
    carried: dict[str, dict[str, type[Message]]] = defaultdict(dict)
    for part in parts:
        for topic, messages in _messages(part.processors).items():
            if topic not in own or own[topic][1] is part.topology:
                carried[topic] |= messages
    types = {message for messages in carried.values() for message in messages.values()}
    schemas, models = _schemas(sorted(types, key=lambda each: (each.TYPE, each.__module__)))
    names = own.keys() | {name for read, written in used.values() for name in read | written}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": ", ".join(used),
            "version": "1",
            "description": "The key of every record is the aggregate id in UTF-8; murmur2 of it gives the partition.",
        },
        "defaultContentType": CONTENT_TYPE,
        "channels": {
            name: _channel(name, own.get(name), _described(name, carried.get(name, {}), schemas))
            for name in sorted(names)
        },
        "operations": {
            f"{service} {action} {name}": {"action": action, "channel": {"$ref": f"#/channels/{name}"}}
            for service, (read, written) in used.items()
            for action, topics in (("receive", read), ("send", written))
            for name in sorted(topics)
        },
        "components": {"schemas": models},
    }


def _messages(processors: Iterable[Processor]) -> Mapping[str, Mapping[str, type[Message]]]:
    """The types declared by this service, by the topic that carries them and their name there."""
    found: dict[str, dict[str, type[Message]]] = defaultdict(dict)

    def declare(topic: Topic, messages: Iterable[type[Message]]) -> None:
        found[topic.name] |= {each.TYPE: each for each in messages}

    for processor in processors:
        match processor:
            case AggregateProcessor(decider=decider):
                declare(processor.source, decider.commands)
                declare(processor.events, decider.events)
            case PolicyProcessor(policy=policy):
                for topic, commands in policy.commands.items():
                    declare(topic, commands)
            case PublicationProcessor(publication=publication):
                found[publication.topic.name] |= {public_type(each): each for each in publication.public}
    return found


def _channel(name: str, own: tuple[Topic, Topology] | None, messages: Json) -> Json:
    """own: None for another service's, which describes it in its own document."""
    if own is None:
        return {"address": name, "description": "Another service's; its document describes it.", "messages": messages}
    topic, topology = own
    settings = {"cleanup.policy": topic.cleanup.split(","), "retention.ms": topic.retention_ms}
    kafka = {"topic": name, "partitions": topology.partitions, "topicConfiguration": settings, **_KAFKA}
    return {"address": name, "messages": messages, "bindings": {"kafka": kafka}}


def _described(topic: str, messages: Mapping[str, type[Message]], schemas: Mapping[type[Message], Json]) -> Json:
    service, _, kind = topic.rpartition(".")[0].partition(".")
    return {
        name: {
            "name": name,
            "title": each.__name__,
            **({"description": each.__doc__} if each.__doc__ else {}),
            **(
                {"headers": _headers(name, service), "payload": schemas[each]}
                if kind == "public"
                else {"payload": _envelope(each, schemas[each])}
            ),
            "bindings": {"kafka": {"key": {"type": "string"}, **_KAFKA}},
        }
        for name, each in sorted(messages.items())
    }


def _headers(type_: str, service: str) -> Json:
    """Of a CloudEvent in binary mode."""
    known = {"specversion": "1.0", "source": f"/{service}", "type": type_}
    attributes = {
        f"ce_{name}": {"type": "string", **({"const": known[name]} if name in known else {})} for name in _ATTRIBUTES
    }
    headers = {**attributes, "content-type": {"type": "string", "const": CONTENT_TYPE}}
    return {"type": "object", "properties": headers, "required": list(headers)}


def _schemas(types: Sequence[type[Message]]) -> tuple[dict[type[Message], Json], Json]:
    """The schema of each type, and the models that these refer to."""
    inner, definitions = models_json_schema([(each, "validation") for each in types], ref_template=_SCHEMA)
    return {each: inner[each, "validation"] for each in types}, definitions.get("$defs", {})


def _envelope(message: type[Message], data: Json) -> Json:
    kind: Any = CommandEnvelope if issubclass(message, Command) else EventEnvelope
    _, schemas = schema_components([kind[Raw]])
    (schema,) = schemas.values()
    exactly = {"type": {"const": message.TYPE}, "schema_version": {"const": message.VERSION}, "data": data}
    return {**schema, "title": message.__name__, "properties": schema["properties"] | exactly}
