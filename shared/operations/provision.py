"""Creates the declared topics and checks the existing ones; the brokers never create any by themselves."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
    TopicMetadata,
)

from shared.domain.errors import OnefoldError
from shared.kafka.access import ABSENT_FIX, ANSWER_S, client_config
from shared.runtime.checkout import found_services
from shared.runtime.declared import declared
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.topology.declaration import Service
from shared.topology.topics import DELETIONS_KEPT_S, Topology

log = structlog.get_logger(__name__)

TIMESTAMPS = "message.timestamp.type"
_TIGHT = {
    "segment.bytes": str(16 * 2**20),
    "min.cleanable.dirty.ratio": "0.2",
    "delete.retention.ms": str(DELETIONS_KEPT_S * 1_000),
}
"""Of changelogs whose rows end: by default brokers keep a gigabyte for each partition before they compact it at all.
And deletions as long as stores count on, whatever the cluster's own setting is."""
_HARMLESS = frozenset({TIMESTAMPS, *_TIGHT})  # what loses nothing when it changes, so `provision` changes it
_RETRY_PAUSE_S = 0.2
_PROVISION_DEADLINE_S = 30.0
_REFUSALS = {
    KafkaError._AUTHENTICATION: "ONEFOLD_KAFKA_USER, ONEFOLD_KAFKA_MECHANISM or ONEFOLD_KAFKA_PASSWORD is wrong",
    KafkaError._SSL: "its certificate is not signed by ONEFOLD_KAFKA_CA, or has expired",
}
_TRANSIENT = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_CONTROLLER}
)


class ProvisionError(OnefoldError):
    """The brokers don't answer or refuse to create a declared topic, or two services declare one differently.

    Operator action: check that at least ONEFOLD_REPLICATION brokers run, then provision again.
    """


class TopicsMissing(OnefoldError):
    """Topics that a service needs do not exist, or this principal may not see them.

    Operator action: run `provision`, and `grant` where the brokers use ACLs. If `provision` does not create them, no
    service declares them: add them to `topics` in the topology.py of their service.
    """


class TopologyMismatch(OnefoldError):
    """A topic exists with settings other than declared; nothing was changed.

    Operator action: do what the line of each difference says, then provision again.
    """

    def __init__(self, differences: Iterable[Difference]) -> None:
        self.differences = tuple(differences)
        super().__init__("\n".join(map(str, self.differences)))


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic's settings, declared or found. replication: that of its least replicated partition."""

    partitions: int
    replication: int
    config: Mapping[str, str]

    def settings(self) -> dict[str, str]:
        """Every setting, by Kafka's name."""
        return {"partitions": str(self.partitions), "replication": str(self.replication), **self.config}


class Copies(NamedTuple):
    """The brokers that are to have a copy of a partition, and those whose copy is in sync."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class Placement(NamedTuple):
    """The brokers that answer, the copies of every partition there is, and where the brokers are."""

    brokers: frozenset[int]
    copies: Mapping[Place, Copies]
    addresses: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting of one topic that differs from its declaration, and what to do about it."""

    topic: str
    setting: str
    declared: str
    found: str

    @property
    def fix(self) -> str:
        match self.setting:
            case "topic":
                return "run `provision`"
            case "partitions" if int(self.declared) > int(self.found):
                return (
                    f"`repartition --partitions {self.declared}`, for which all services stand still, or declare "
                    f"{self.found} again"
                )
            case "partitions":
                return (
                    f"if the declaration was changed, declare {self.found} again, because keys must stay in their "
                    f"partitions; if the topic was, delete it if it is empty, else restore it from a backup"
                )
            case "replication":
                return f"reassign the topic to {self.declared} replicas, or set ONEFOLD_REPLICATION={self.found}"
            case "min.insync.replicas":
                return f"{self._change}, or set ONEFOLD_MIN_ISR={self.found}"
            case "retention.ms":
                return f"{self._change}, or declare {self.found} if its topology.py names the topic"
            case _:
                return self._change

    @property
    def _change(self) -> str:
        return f"`kafka {setting_command(self.topic, self.setting, self.declared)}`"

    def __str__(self) -> str:
        return f"{self.topic}: {self.setting} is {self.found}, declared as {self.declared}; fix: {self.fix}"


def setting_command(topic: str, setting: str, value: str) -> str:
    """The arguments of `kafka` that change a setting of a topic, as one types them in a shell."""
    listed = f"[{value}]" if "," in value else value
    return shlex.join(["configs", "--alter", "--topic", topic, "--add-config", f"{setting}={listed}"])


def load_topologies() -> list[Topology]:
    """The topology of every service. Raises as `load_services`."""
    return [service.topology for service in load_services()]


def load_services() -> list[Service]:
    """What every folder of `services` with a service.py declares, sorted by folder.

    Raises ProvisionError if workers handle another service's topic that has a different number of partitions.
    """
    folders = found_services(having="service.py")
    services: list[Service] = [declared(f"services.{each}", "service", "SERVICE") for each in folders]
    owners = {topic.name: service.topology for service in services for topic in service.topology.topics}
    for service in services:
        topology = service.topology
        for topic in service.handled:
            owner = owners.get(topic.name, topology)
            if owner.partitions != topology.partitions:
                raise ProvisionError(
                    f"{topology.service} has {topology.partitions} partitions and reads {topic.name}, which has "
                    f"{owner.partitions}; fix: give the newer service the `partitions` of the other"
                )
    return services


def declared_topics(topologies: Iterable[Topology], settings: Settings) -> dict[str, TopicSpec]:
    """The declared settings of each topic, by name. Raises ProvisionError if two services disagree on a topic."""
    specs: dict[str, TopicSpec] = {}
    for topology in topologies:
        ending = {topology.changelog(table) for table in topology.tables if table.ends}
        if any(table.ends and not table.is_of_commands for table in topology.tables):
            ending.add(topology.changelog(topology.parked))  # each commit in which a view's row ends is noted there
        for topic in topology.all_topics():
            config = {
                "cleanup.policy": topic.cleanup,
                "retention.ms": str(topic.retention_ms),
                "retention.bytes": "-1",  # else the brokers' own limit, if they have one
                "min.insync.replicas": str(settings.min_isr),
                "unclean.leader.election.enable": "false",
                TIMESTAMPS: "LogAppendTime",  # by the brokers' clock, whatever that of a writer says
            } | (_TIGHT if topic in ending else {})
            spec = TopicSpec(topology.partitions, settings.replication, config)
            if specs.setdefault(topic.name, spec) != spec:
                twice = f"{topic.name} is declared twice, with other settings by {topology.service}"
                raise ProvisionError(f"{twice}; fix: declare it identically, or in one service only")
    return specs


def differences(declared: Mapping[str, TopicSpec], found: Mapping[str, TopicSpec]) -> list[Difference]:
    """Every setting that differs from its declaration, and every missing topic."""
    return [difference for name, spec in declared.items() for difference in _compare(name, spec, found.get(name))]


def _compare(name: str, declared: TopicSpec, found: TopicSpec | None) -> list[Difference]:
    if found is None:
        return [Difference(name, "topic", "present", "missing")]
    have = found.settings()
    return [
        Difference(name, setting, value, have.get(setting, "unset"))
        for setting, value in declared.settings().items()
        if have.get(setting) != value
    ]


def found_topics(names: Iterable[str], bootstrap: str) -> dict[str, TopicSpec]:
    """The settings of those `names` that exist on the brokers. Raises ProvisionError if no broker answers."""
    return _Topics(bootstrap).found(frozenset(names))


def placed(bootstrap: str) -> Placement:
    """Where every topic's partitions are. Raises ProvisionError if no broker answers."""
    found = _Topics(bootstrap).metadata()
    copies = {
        Place(name, number): Copies(tuple(partition.replicas), tuple(partition.isrs))
        for name, topic in found.topics.items()
        for number, partition in topic.partitions.items()
    }
    addresses = sorted(f"{each.host}:{each.port}" for each in found.brokers.values())
    return Placement(frozenset(found.brokers), copies, addresses)


def require_topics(names: Iterable[str], partitions: int, bootstrap: str, others: Iterable[str] = ()) -> None:
    """Raises TopicsMissing; TopologyMismatch for another number of partitions; ProvisionError if no broker answers.

    others: topics that may have any number of partitions.
    """
    needed, present = set(names), _Topics(bootstrap).present()
    if missing := sorted(needed.union(others) - present.keys()):
        undeclared = "if it does not create them, add them to `topics` in the topology.py of their service"
        raise TopicsMissing(
            f"missing, or hidden from this principal: {', '.join(missing)}; fix: run `provision`; {undeclared}"
        )
    require_partitions({name: len(present[name].partitions) for name in sorted(needed)}, partitions)


def require_partitions(found: Mapping[str, int], declared: int) -> None:
    """found: how many partitions each topic has. Raises TopologyMismatch for those with another number."""
    _refuse([Difference(name, "partitions", f"{declared}", f"{n}") for name, n in found.items() if n != declared])


def provision(topologies: Iterable[Topology], settings: Settings) -> list[str]:
    """Creates the missing topics and checks all; returns the names that this call created.

    Several processes may do this at once. Raises TopologyMismatch, before it creates or changes anything, if an
    existing topic differs in more than what can be changed; ProvisionError if the brokers refuse or do not answer.
    """
    declared = declared_topics(topologies, settings)
    deadline = time.monotonic() + _PROVISION_DEADLINE_S
    topics = _Topics(settings.bootstrap)
    found = topics.found(declared.keys())
    differing = _without_missing(differences(declared, found))
    _refuse([each for each in differing if each.setting not in _HARMLESS])
    topics.change(differing)
    missing = {name: spec for name, spec in declared.items() if name not in found}
    created = topics.create(missing, deadline)
    _refuse(_settled_differences(topics, declared, deadline))
    return sorted(created)


def _refuse(found: list[Difference]) -> None:
    if found:
        raise TopologyMismatch(found)


def _without_missing(found: list[Difference]) -> list[Difference]:
    return [difference for difference in found if difference.setting != "topic"]


def _settled_differences(topics: _Topics, declared: Mapping[str, TopicSpec], deadline: float) -> list[Difference]:
    """What differs once all brokers know every topic and setting; they learn of new ones with a delay."""
    while True:
        found = differences(declared, topics.found(declared.keys()))
        if not any(each.setting in ("topic", *_HARMLESS) for each in found) or time.monotonic() > deadline:
            return found
        time.sleep(_RETRY_PAUSE_S)


def create_topics(specs: Mapping[str, TopicSpec], bootstrap: str) -> list[str]:
    """Creates those that are missing; returns their names. Raises ProvisionError."""
    return _Topics(bootstrap).create(specs, time.monotonic() + _PROVISION_DEADLINE_S)


def own_settings(names: Iterable[str], bootstrap: str) -> dict[str, dict[str, str]]:
    """What is set for each of these topics itself, declared or not. Raises ProvisionError."""
    return _Topics(bootstrap).own_settings(sorted(names))


def set_config(admin: AdminClient, topic: str, setting: str, value: str) -> None:
    """Changes one setting of a topic, by Kafka's name, and no other. Raises KafkaException."""
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource], request_timeout=ANSWER_S)[resource].result()


class _Topics:
    """Reads and creates the brokers' topics. Every method raises ProvisionError."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        # failures are raised with their reason; librdkafka would also print a line per connection attempt
        self._reasons: list[str] = []
        self._admin = AdminClient(client_config(bootstrap) | {"log_level": 0, "error_cb": self._note})

    def present(self) -> Mapping[str, TopicMetadata]:
        return self.metadata().topics

    def metadata(self) -> ClusterMetadata:
        try:
            return self._admin.list_topics(timeout=ANSWER_S)
        except KafkaException as error:
            self._admin.poll(0)  # delivers the errors that happened meanwhile
            silent = f"no broker answers at {self._bootstrap} within {ANSWER_S:.0f} s"
            why = f": {self._reasons[0]}" if self._reasons else f"; {ABSENT_FIX}"
            raise ProvisionError(silent + why) from error

    def _note(self, error: KafkaError) -> None:
        if error.code() in _REFUSALS:
            self._reasons.append(f"{_REFUSALS[error.code()]} ({error.str()})")

    def found(self, names: Set[str]) -> dict[str, TopicSpec]:
        present = self.present()
        configs = self._configs(sorted(names & present.keys()))
        return {name: _spec(present[name], config) for name, config in configs.items() if present[name].partitions}

    def create(self, specs: Mapping[str, TopicSpec], deadline: float) -> list[str]:
        """The names created by this call; another process may have created the others first."""
        created: list[str] = []
        waiting = dict(specs)
        while waiting:
            topics = [_new_topic(name, spec) for name, spec in waiting.items()]
            answers = self._admin.create_topics(topics, request_timeout=ANSWER_S)
            outcomes = {name: _creation(name, answer, deadline) for name, answer in answers.items()}
            created += [name for name, outcome in outcomes.items() if outcome == "created"]
            waiting = {name: specs[name] for name, outcome in outcomes.items() if outcome == "again"}
            time.sleep(_RETRY_PAUSE_S if waiting else 0)
        return created

    def change(self, differing: Iterable[Difference]) -> None:
        """Give each topic the declared setting."""
        for each in differing:
            try:
                set_config(self._admin, each.topic, each.setting, each.declared)
            except KafkaException as failure:
                raise ProvisionError(f"{each}; it was not changed: {failure.args[0].str()}") from failure
            log.info("set as declared", topic=each.topic, setting=each.setting, was=each.found, now=each.declared)

    def own_settings(self, names: list[str]) -> dict[str, dict[str, str]]:
        """Without those that it has from its brokers."""
        return {
            name: {
                setting: str(entry.value)
                for setting, entry in config.items()
                if ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
            }
            for name, config in self._described(names).items()
        }

    def _configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        """The effective settings of each topic; a topic that the broker does not know yet is left out."""
        found = self._described(names)
        return {name: {each: str(entry.value) for each, entry in config.items()} for name, config in found.items()}

    def _described(self, names: list[str]) -> dict[str, dict[str, ConfigEntry]]:
        if not names:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        answers = self._admin.describe_configs(resources, request_timeout=ANSWER_S)
        read = {resource.name: _config(resource.name, answer) for resource, answer in answers.items()}
        return {name: config for name, config in read.items() if config is not None}


def _new_topic(name: str, spec: TopicSpec) -> NewTopic:
    return NewTopic(name, spec.partitions, spec.replication, config=dict(spec.config))


def _creation(name: str, answer: Future[None], deadline: float) -> Literal["created", "exists", "again"]:
    try:
        answer.result()
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return "exists"
        if error.code() in _TRANSIENT and time.monotonic() < deadline:
            return "again"
        raise ProvisionError(f"{name} was not created: {error.str()}") from failure
    return "created"


def _config(name: str, answer: Future[dict[str, ConfigEntry]]) -> dict[str, ConfigEntry] | None:
    try:
        return answer.result()
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise ProvisionError(f"the settings of {name} cannot be read: {error.str()}") from failure


def _spec(metadata: TopicMetadata, config: Mapping[str, str]) -> TopicSpec:
    replicas = [len(partition.replicas) for partition in metadata.partitions.values()]
    return TopicSpec(len(replicas), min(replicas), config)
