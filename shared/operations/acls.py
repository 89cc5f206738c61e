"""What each service's principal may do on the brokers: what its topology needs, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from shared.kafka.access import client_config
from shared.kafka.transactions import producer_id
from shared.operations.provision import ProvisionError
from shared.runtime.settings import SCRAM, Mechanism
from shared.topology.declaration import Service
from shared.topology.topics import Topic, Topology

MECHANISMS: Mapping[Mechanism, ScramMechanism] = {
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
}
"""Whose principals the brokers know by themselves."""
_ITERATIONS = 4096  # of the hash; the least Kafka takes, and enough for a random password


def grant(services: Iterable[Service], bootstrap: str) -> int:
    """Creates the ACLs of each service's principal, which has its name; returns how many. Raises ProvisionError."""
    rules = [rule for service in services for rule in rules_of(service.topology, service.neighbours)]
    admin = AdminClient(client_config(bootstrap))  # a variable, else it is collected before its answers arrive
    try:
        for answer in admin.create_acls(rules).values():
            answer.result()
    except KafkaException as failure:
        raise ProvisionError(f"not all ACLs were created: {failure.args[0].str()}") from failure
    return len(rules)


def create_principals(passwords: Mapping[str, str], bootstrap: str, mechanism: Mechanism = SCRAM) -> None:
    """Creates these principals on the brokers, with these passwords. Raises ProvisionError."""
    if mechanism not in MECHANISMS:
        fix = "create them where its brokers look, and `grant` without --passwords"
        raise ProvisionError(f"{mechanism} has no principals on the brokers; fix: {fix}")
    info = ScramCredentialInfo(MECHANISMS[mechanism], _ITERATIONS)
    changes: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(name, info, password.encode()) for name, password in passwords.items()
    ]
    admin = AdminClient(client_config(bootstrap))
    try:
        for answer in admin.alter_user_scram_credentials(changes).values():
            answer.result()
    except KafkaException as failure:
        raise ProvisionError(f"not all principals were created: {failure.args[0].str()}") from failure


def rules_of(topology: Topology, neighbours: Iterable[Topic]) -> Iterator[AclBinding]:
    """Read and write its own topics, write its neighbours' commands, read their events; use its group and producers;
    see the positions of all versions before its own and of the next.
    """
    for topic in topology.all_topics():
        yield _allow(topology, ResourceType.TOPIC, topic.name, AclOperation.READ)
        yield _allow(topology, ResourceType.TOPIC, topic.name, AclOperation.WRITE)
    for topic in neighbours:
        operation = AclOperation.WRITE if topic.kind == "commands" else AclOperation.READ
        yield _allow(topology, ResourceType.TOPIC, topic.name, operation)
    yield _allow(topology, ResourceType.GROUP, topology.group, AclOperation.READ)
    # a worker asks whether a version before its own, or the next, has begun
    for version in {*range(1, topology.version + 2)} - {topology.version}:
        yield _allow(topology, ResourceType.GROUP, replace(topology, version=version).group, AclOperation.DESCRIBE)
    prefix = ResourcePatternType.PREFIXED
    yield _allow(topology, ResourceType.TRANSACTIONAL_ID, producer_id(topology.group, ""), AclOperation.WRITE, prefix)


def _allow(
    topology: Topology,
    kind: ResourceType,
    name: str,
    operation: AclOperation,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{topology.service}", "*", operation, AclPermissionType.ALLOW)
