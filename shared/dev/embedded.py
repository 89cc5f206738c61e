"""A real Apache Kafka cluster on this machine, for development, the demo, tests and benchmarks."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from shared.domain.errors import OnefoldError
from shared.runtime.child import Child
from shared.runtime.classes import SharedClasses
from shared.runtime.jars import KAFKA_JARS, fetch_jars, user_cache
from shared.runtime.java import Java, as_properties, find_java
from shared.runtime.positions import Place

_HOST = "127.0.0.1"
# Below every system's ephemeral range, so that no client's own socket takes a port while its broker is down.
_PORTS = range(20_000, 30_000)

_START_DEADLINE_S = 120.0
_STOP_DEADLINE_S = 15.0
_LOCK_DEADLINE_S = 10.0
_PAUSE_S = 0.05
_FULL_BYTES = 1 << 20
_FEATURES = "bootstrap.checkpoint"  # the versions of what the brokers of this release do; read at the first start
_ERROR_LINES = 8
_ERROR = re.compile(r" (ERROR|FATAL) |^(Caused by: )?[\w.$]+(Exception|Error): ")


class BrokerFailed(OnefoldError):
    """A broker did not start, or ended by itself.

    Operator action: read the errors that the message quotes, and their cause in the log that it names.
    """


class EmbeddedKafka:
    """One broker, or three with replication 3 and min ISR 2, numbered from 1 and reachable on loopback only.

    Data and ports are kept in `data_dir`. `properties` override the configuration of every broker, and `options` those
    of its Java. Brokers end with the process that started them, however that one ends.
    """

    def __init__(
        self,
        data_dir: Path,
        log_dir: Path,
        brokers: int = 1,
        properties: Mapping[str, str | int] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        if brokers not in (1, 3):
            raise ValueError(f"{brokers} brokers: only 1 or 3 can run")
        self._data_dir = data_dir.resolve()
        self._log_dir = log_dir.resolve()
        self._size = brokers
        self._properties = properties or {}
        self._options = options
        self._brokers: dict[int, _Broker] = {}
        self._lock: int | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """Every broker's address, comma-separated; known after `start`."""
        return ",".join(broker.address for broker in self._brokers.values())

    @property
    def pids(self) -> list[int]:
        """Of the brokers that run."""
        return [broker.pid for broker in self._brokers.values() if broker.pid is not None]

    def start(self) -> None:
        """Returns when every broker answers. Raises BrokerFailed, JavaUnavailable or JarsUnavailable."""
        java, jars = find_java(), fetch_jars(KAFKA_JARS)
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            self._data_dir.mkdir(parents=True, exist_ok=True)
            self._lock = _exclusive(self._data_dir / "lock")
            with ExitStack() as undo:
                undo.callback(self.stop)
                self._prepare(java, jars, self._lock)
                for broker in self._brokers.values():
                    broker.spawn()
                for broker in self._brokers.values():
                    broker.await_ready(self._brokers.keys())
                undo.pop_all()
        except OSError as error:
            raise BrokerFailed(f"cannot write in {self._data_dir} or {self._log_dir}: {error.strerror}") from error

    def stop(self) -> None:
        """Ends every broker: SIGTERM, and SIGKILL for one that takes too long."""
        for broker in self._brokers.values():
            broker.terminate()
        deadline = time.monotonic() + _STOP_DEADLINE_S
        for broker in self._brokers.values():
            broker.await_end(deadline)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def check(self) -> None:
        """Raises BrokerFailed if a broker has ended by itself, as it does when the disk is full."""
        for broker in self._brokers.values():
            broker.check()

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self._brokers[number].kill()

    def restart(self, number: int) -> None:
        """Ends the broker if it runs, and starts it again on its data and port; returns when it answers."""
        broker = self._brokers[number]
        broker.terminate()
        broker.await_end(time.monotonic() + _STOP_DEADLINE_S)
        broker.spawn()
        broker.await_ready({number})

    def pause(self, number: int) -> None:
        """SIGSTOP: the broker's connections stay open, and nothing answers."""
        self._brokers[number].signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._brokers[number].signal(signal.SIGCONT)

    def write_log(self, place: Place, start: int, batches: Iterable[tuple[int, bytes]], segment_bytes: int) -> None:
        """Gives an empty partition of the only broker, which does not run, the log that begins at `start`.

        batches: (first offset, bytes). What a broker derives from its log it makes again when it starts.
        """
        (clean := self._data_dir / "node-1" / ".kafka_cleanshutdown").unlink(missing_ok=True)
        folder = clean.parent / f"{place.topic}-{place.number}"
        for file in folder.iterdir():
            if file.name != "partition.metadata":
                file.unlink()
        log, first = (folder / f"{start:020}.log").open("wb"), start
        try:
            for offset, batch in batches:
                if log.tell() + len(batch) > segment_bytes or offset - first >= 2**31 - 1:
                    log.close()
                    log, first = (folder / f"{offset:020}.log").open("wb"), offset
                log.write(batch)
        finally:
            log.close()

    def _prepare(self, java: Java, jars: Sequence[Path], lock: int) -> None:
        classes = SharedClasses(user_cache(), "kafka", java, jars)
        cluster_id, ports = self._identity()
        voters = ",".join(f"{number}@{_HOST}:{port}" for number, port in enumerate(ports[1::2], start=1))
        for number, (client, controller) in enumerate(zip(ports[::2], ports[1::2], strict=True), start=1):
            config = self._data_dir / f"node-{number}.properties"
            config.write_text(as_properties(self._configuration(number, client, controller, voters)))
            options = classes.mapped_or_left() if number == 1 else classes.mapped()
            command = [*java.kafka(jars, [*options, *self._options]), "kafka.Kafka", str(config)]
            log = self._log_dir / f"kafka-{number}.log"
            self._brokers[number] = _Broker(number, (client, controller), command, log, self._data_dir, lock)
        tool = java.kafka(jars, classes.mapped())
        self._format([*tool, "kafka.tools.StorageTool"], cluster_id)

    def _identity(self) -> tuple[str, list[int]]:
        """The cluster's id and each broker's client and controller port, the same as before where they are free."""
        file = self._data_dir / "cluster.json"
        if file.exists():
            known = json.loads(file.read_text())
        else:
            known = {"id": _kafka_uuid(), "ports": random.sample(_PORTS, 2 * self._size)}
        if len(known["ports"]) != 2 * self._size:
            raise BrokerFailed(
                f"{self._data_dir} holds a cluster of {len(known['ports']) // 2}, not of {self._size}: "
                "start as many brokers as it has, or delete it"
            )
        ports = _free_ports(known["ports"])
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"id": known["id"], "ports": ports}))
        new.replace(file)
        return known["id"], ports

    def _configuration(self, number: int, client: int, controller: int, voters: str) -> dict[str, str | int]:
        copies, min_isr = (3, 2) if self._size == 3 else (1, 1)
        return {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "CLIENT",
            "listeners": f"CLIENT://{_HOST}:{client},CONTROLLER://{_HOST}:{controller}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": f"node-{number}",  # relative: formatting has another working folder, and a path may have commas
            "log.cleaner.dedupe.buffer.size": 16 << 20,  # of the heap, at once; 128 MiB by default
            "broker.session.timeout.ms": 5000,  # a killed broker's partitions, and its return, wait this long
            "broker.heartbeat.interval.ms": 1000,
            "auto.create.topics.enable": "false",
            "unclean.leader.election.enable": "false",
            "default.replication.factor": copies,
            "min.insync.replicas": min_isr,
            "offsets.topic.num.partitions": 8,
            "offsets.topic.replication.factor": copies,
            "offsets.retention.minutes": 2**31 - 1,  # a group's offsets live as long as its topics
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1500,  # a killed worker may be missed sooner than after the usual 6 s
            "transaction.state.log.num.partitions": 8,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": min_isr,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
            **self._properties,
        }

    def _format(self, tool: list[str], cluster_id: str) -> None:
        """Creates the folders of the brokers that have none, each completely or not at all.

        Kafka's tool makes one, once for all of this user's clusters; any other differs from it by its ids only.
        """
        missing = [number for number in self._brokers if not (self._data_dir / f"node-{number}").exists()]
        if not missing:
            return
        new = self._data_dir / "new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        features = user_cache() / f"{KAFKA_JARS.stem}.checkpoint"
        if not features.exists():
            self._format_by_tool([*tool, "format", "--cluster-id", cluster_id, "--config"], new, features)
        for number in missing:
            folder = new / f"node-{number}"
            folder.mkdir()
            shutil.copy(features, folder / _FEATURES)
            ids: dict[str, str | int] = {
                "version": 1,
                "cluster.id": cluster_id,
                "node.id": number,
                "directory.id": _kafka_uuid(),
            }
            (folder / "meta.properties").write_text(as_properties(ids))
            folder.rename(self._data_dir / folder.name)
        new.rmdir()

    def _format_by_tool(self, command: list[str], new: Path, features: Path) -> None:
        done = subprocess.run(
            [*command, str(self._data_dir / "node-1.properties")],
            cwd=new, capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        if done.returncode:
            raise BrokerFailed(f"cannot format {self._data_dir / 'node-1'}:\n{done.stdout}{done.stderr}")
        shutil.copy(new / "node-1" / _FEATURES, whole := features.with_name(f"{features.name}.{os.getpid()}"))
        whole.replace(features)
        shutil.rmtree(new / "node-1")


class _Broker:
    """One broker: its process, which can be started many times."""

    def __init__(
        self, number: int, ports: tuple[int, int], command: list[str], log: Path, folder: Path, lock: int
    ) -> None:
        self.address = f"{_HOST}:{ports[0]}"
        self._number = number
        self._ports = ports
        self._command = command
        self._log = log
        self._folder = folder
        self._lock = lock
        self._process: Child | None = None
        self._log_start = 0

    def spawn(self) -> None:
        with ExitStack() as held:
            if taken := [port for port in self._ports if not _is_free(port, held)]:
                raise BrokerFailed(f"broker {self._number} cannot start: another program uses its port {taken[0]}")
        self._log.touch()
        self._log_start = self._log.stat().st_size
        self._process = Child(self._command, self._log, self._folder, inherited=[self._lock])

    def await_ready(self, peers: Set[int]) -> None:
        """Returns once this broker answers and knows its peers."""
        admin = AdminClient({"bootstrap.servers": self.address, "reconnect.backoff.max.ms": 200, "log_level": 0})
        deadline = time.monotonic() + _START_DEADLINE_S
        while not peers <= _known_brokers(admin):
            self.check()
            if time.monotonic() > deadline:
                raise self._failure(f"does not answer after {_START_DEADLINE_S:.0f} s")
            time.sleep(_PAUSE_S)

    def check(self) -> None:
        if self._process and self._process.exit_code is not None:
            raise self._failure(f"ended with code {self._process.exit_code}")

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def signal(self, number: signal.Signals) -> None:
        if self._process:
            self._process.send_signal(number)

    def terminate(self) -> None:
        if self._process:
            self._process.terminate()

    def await_end(self, deadline: float) -> None:
        """Ends it by SIGKILL at the deadline."""
        if self._process:
            self._process.wait(max(0.0, deadline - time.monotonic()))
            self.kill()

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process = None

    def _failure(self, what: str) -> BrokerFailed:
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        errors = list(dict.fromkeys(filter(_ERROR.search, lines))) or lines
        disk = "" if shutil.disk_usage(self._folder).free > _FULL_BYTES else " (its disk is full)"
        quoted = "\n  ".join(errors[-_ERROR_LINES:])
        return BrokerFailed(f"broker {self._number} {what}{disk}; the last errors in {self._log}:\n  {quoted}")


def _known_brokers(admin: AdminClient) -> Set[int]:
    try:
        return admin.list_topics(timeout=0.5).brokers.keys()
    except KafkaException:
        return frozenset()


def _exclusive(file: Path) -> int:
    """A locked descriptor. The brokers inherit it, so the lock is held until the last of them has ended."""
    with file.open("a") as opened:
        lock = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 10)  # a child's shell uses the lower descriptors
    deadline = time.monotonic() + _LOCK_DEADLINE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(lock)
                raise BrokerFailed(f"{file.parent} is in use by running brokers: stop them first") from None
            time.sleep(_PAUSE_S)


def _free_ports(wanted: Iterable[int]) -> list[int]:
    """The wanted ports, with another port in place of each that is taken."""
    with ExitStack() as held:
        return [next(port for port in [first, *random.sample(_PORTS, 100)] if _is_free(port, held)) for first in wanted]


def _is_free(port: int, held: ExitStack) -> bool:
    """Whether the port is free. A free port stays bound in `held`, so that it is not found twice."""
    probe = held.enter_context(socket.socket())
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((_HOST, port))
    except OSError:
        return False
    return True


def _kafka_uuid() -> str:
    """127 random bits as Kafka writes them. The first of 128 bits is 0: a leading dash would look like an option."""
    return urlsafe_b64encode((uuid.uuid4().int >> 1).to_bytes(16, "big")).decode().rstrip("=")
