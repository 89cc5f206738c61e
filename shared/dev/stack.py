"""A broker and workers on this machine, all under one folder: for `up`, the demo, tests and benchmarks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from shared.dev.embedded import EmbeddedKafka
from shared.dev.worker import READY_DEADLINE_S, STOP_DEADLINE_S, Command, Kept, Worker, faust_command
from shared.operations.provision import load_topologies, provision
from shared.runtime.checkout import found_services
from shared.runtime.settings import Settings, load_settings
from shared.topology.topics import Topology


class Stack:
    """Keeps everything in `root`: data, local stores and logs, which outlive it.

    services: workers per service; without it, one of each service found. settings: what all workers share.
    """

    def __init__(
        self,
        root: Path,
        services: Mapping[str, int] | None = None,
        brokers: int = 1,
        *,
        settings: Settings | None = None,
        topologies: Sequence[Topology] | None = None,
        command: Command = faust_command,
    ) -> None:
        self.root = root.resolve()
        self.kafka = EmbeddedKafka(self.root / "kafka", self.logs, brokers)
        self.workers: list[Worker] = []
        self.runners: list[Kept] = []
        copies, min_isr = (3, 2) if brokers == 3 else (1, 1)
        self._base = settings or load_settings()
        self._durability = {"replication": copies, "min_isr": min_isr}
        self._services = dict(services) if services is not None else dict.fromkeys(found_services(), 1)
        self._topologies = topologies
        self._command = command

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def bootstrap(self) -> str:
        return self.kafka.bootstrap

    @property
    def settings(self) -> Settings:
        """The settings that all workers share; known once the brokers run."""
        here = {"bootstrap": self.bootstrap, "data_dir": self.root / "stores"}
        return self._base.model_copy(update=here | self._durability)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when every worker is ready; stops everything if that fails. Raises StageFailed, BrokerFailed …"""
        try:
            self.start_brokers()
            self.provision()
            self.start_workers()
        except BaseException:
            self.stop()
            raise

    def start_brokers(self) -> None:
        self.kafka.start()

    def provision(self) -> list[str]:
        """Returns the topics that it created."""
        return provision(load_topologies() if self._topologies is None else self._topologies, self.settings)

    def start_workers(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Starts all at once and waits for each. progress: called with the number of ready workers and of all."""
        for service, count in self._services.items():
            for _ in range(count):
                self.spawn_worker(service)
        deadline = time.monotonic() + READY_DEADLINE_S
        for ready, worker in enumerate(self.workers):
            if progress:
                progress(ready, len(self.workers))
            worker.await_ready(max(0.0, deadline - time.monotonic()))

    def add_worker(self, service: str) -> Worker:
        """Starts one more worker, and returns it when it is ready."""
        worker = self.spawn_worker(service)
        worker.await_ready()
        return worker

    def spawn_worker(self, service: str) -> Worker:
        """Starts one more worker without waiting for it. It has the stores of one that had its number before."""
        instance = str(len(self.workers_of(service)) + 1)
        log = self.logs / f"{service}-{instance}.log"
        worker = Worker(service, instance, self.settings, log, self._command)
        self.workers.append(worker)
        worker.spawn()
        return worker

    def spawn_runners(self) -> None:
        """Starts what calls for the effects of services that have workers, and no runner yet; waits for none."""
        served = {worker.service for worker in self.workers} - {runner.service for runner in self.runners}
        for service in served.intersection(found_services(having="effects.py")):
            urls = (f"--url={url}" for url in self.urls(service))
            command = [sys.executable, "-P", "-m", "shared.dev.cli", "effect", "run", service, *urls]
            name = f"{service}-runner"
            runner = Kept(service, name, self.settings, self.logs / f"{name}.log", command, token=True)
            self.runners.append(runner)
            runner.spawn()

    def workers_of(self, service: str) -> list[Worker]:
        return [worker for worker in self.workers if worker.service == service]

    def urls(self, service: str) -> list[str]:
        return [worker.url for worker in self.workers_of(service)]

    def stop(self) -> None:
        """Ends runners and workers, all at once, then the brokers; nothing that it did not start."""
        processes = (*self.runners, *self.workers)
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + STOP_DEADLINE_S
        for process in processes:
            process.await_end(max(0.0, deadline - time.monotonic()))
        self.kafka.stop()
