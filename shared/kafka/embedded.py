"""A real Apache Kafka cluster on this machine's loopback, for development, the demo, tests and benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from shared.kafka.jars import KAFKA_JARS, fetch_jars
from shared.kafka.java import find_java

HOST = "127.0.0.1"
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 15.0

# Below every system's ephemeral range: no client's own socket can take a port while its broker is down.
_PORTS = range(20_000, 30_000)
_LOG4J = Path(__file__).with_name("log4j2.properties")
_JVM = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={_LOG4J}")

# The shell waits beside the broker for the end of its standard input, which comes when this process dies in any way.
_DIE_WITH_PARENT = 'exec 3<&0; (read _ <&3; kill -TERM $$; kill -CONT $$) & exec "$@" 3<&- </dev/null'


class BrokerFailed(Exception):
    """A broker did not start, or died.

    Operator action: read the log the message names; its last error lines are quoted.
    """


@dataclass(frozen=True, slots=True)
class _Ports:
    client: int
    controller: int


class EmbeddedKafka:
    """One broker, or three with replication 3 and min ISR 2; brokers are numbered from 1.

    Data live in `data_dir` and survive a restart. `properties` are added to every broker's own.
    """

    def __init__(
        self,
        data_dir: Path,
        log_dir: Path,
        brokers: int = 1,
        properties: Mapping[str, str | int] | None = None,
    ) -> None:
        self._data_dir = data_dir.resolve()
        self._log_dir = log_dir.resolve()
        self._brokers = brokers
        self._properties = dict(properties or {})
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports: dict[int, _Ports] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """Every broker's address, comma-separated."""
        return ",".join(f"{HOST}:{ports.client}" for ports in self._ports.values())

    def start(self) -> None:
        """Returns when every broker answers. Raises BrokerFailed, JavaUnavailable or JarsUnavailable."""
        self._java = find_java()
        self._classpath = os.pathsep.join(map(str, fetch_jars(KAFKA_JARS)))
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self._log_dir.mkdir(parents=True, exist_ok=True)
        cluster_id = self._load()
        for node in self._ports:
            self._configure(node)
            self._format(node, cluster_id)
        try:
            for node in self._ports:
                self._spawn(node)
            for node in self._ports:
                self._await_ready(node)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends every broker: SIGTERM, and SIGKILL for one that takes too long."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + STOP_DEADLINE_S
        for node in list(self._processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._processes[node].wait(max(0.0, deadline - time.monotonic()))
            self.kill(node)

    def kill(self, node: int) -> None:
        """SIGKILL, as a machine that loses power."""
        process = self._processes.pop(node)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdin
        process.stdin.close()

    def restart(self, node: int) -> None:
        """Starts a killed broker again on its data and port; returns when it answers."""
        self._spawn(node)
        self._await_ready(node)

    def pause(self, node: int) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._processes[node].send_signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        self._processes[node].send_signal(signal.SIGCONT)

    def _load(self) -> str:
        """Chooses ports, the earlier ones where they are free. Returns the cluster's id."""
        file = self._data_dir / "cluster.json"
        known = (
            json.loads(file.read_text())
            if file.exists()
            else {"id": _kafka_uuid(), "ports": [{}] * self._brokers}
        )
        self._ports = {
            node: _Ports(_free_port(ports.get("client")), _free_port(ports.get("controller")))
            for node, ports in enumerate(known["ports"], start=1)
        }
        file.write_text(json.dumps({"id": known["id"], "ports": [asdict(p) for p in self._ports.values()]}))
        return str(known["id"])

    def _configure(self, node: int) -> None:
        ports = self._ports[node]
        voters = ",".join(f"{n}@{HOST}:{p.controller}" for n, p in self._ports.items())
        copies, min_isr = (3, 2) if self._brokers >= 3 else (1, 1)
        properties = {
            "process.roles": "broker,controller",
            "node.id": node,
            "controller.quorum.voters": voters,
            "listeners": f"CLIENT://{HOST}:{ports.client},CONTROLLER://{HOST}:{ports.controller}",
            "advertised.listeners": f"CLIENT://{HOST}:{ports.client}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "CLIENT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self._data_dir / f"node-{node}",
            "auto.create.topics.enable": "false",
            "unclean.leader.election.enable": "false",
            "default.replication.factor": copies,
            "min.insync.replicas": min_isr,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 8,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": min_isr,
            "transaction.state.log.num.partitions": 8,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
            "group.initial.rebalance.delay.ms": 0,
        } | self._properties
        lines = (f"{name}={value}\n" for name, value in properties.items())
        self._config(node).write_text("".join(lines))

    def _format(self, node: int, cluster_id: str) -> None:
        if (self._data_dir / f"node-{node}" / "meta.properties").exists():
            return
        command = self._command(
            "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._config(node))
        )
        subprocess.run(command, check=True, capture_output=True)

    def _spawn(self, node: int) -> None:
        shell = ["/bin/sh", "-c", _DIE_WITH_PARENT, "sh"]
        with self._log(node).open("ab") as log:
            self._processes[node] = subprocess.Popen(
                shell + self._command("kafka.Kafka", str(self._config(node))),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _await_ready(self, node: int) -> None:
        """Returns once this broker itself answers a metadata request that names every running broker."""
        process = self._processes[node]
        admin = AdminClient({"bootstrap.servers": f"{HOST}:{self._ports[node].client}", "log_level": 0})
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(KafkaException):
                if len(admin.list_topics(timeout=0.5).brokers) >= len(self._processes):
                    return
        raise BrokerFailed(f"broker {node} did not start; its log is {self._log(node)}")

    def _command(self, main: str, *arguments: str) -> list[str]:
        return [str(self._java.executable), *_JVM, "-cp", self._classpath, main, *arguments]

    def _config(self, node: int) -> Path:
        return self._data_dir / f"node-{node}.properties"

    def _log(self, node: int) -> Path:
        return self._log_dir / f"kafka-{node}.log"


def _kafka_uuid() -> str:
    """128 random bits in Kafka's spelling."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _free_port(wanted: int | None) -> int:
    candidates = [wanted] if wanted else []
    candidates += random.sample(_PORTS, 50)
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                return port
    raise BrokerFailed(f"no free port among {_PORTS.start} to {_PORTS.stop - 1} on {HOST}")
