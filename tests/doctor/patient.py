"""A system as the doctor sees it, and is treated by its cures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient

from shared.dev.doctor import Diagnosis, diagnose
from shared.doctor.finding import Finding
from shared.kafka.access import client_config
from shared.runtime.checkout import CHECKOUT
from shared.runtime.settings import Settings
from shared.topology.topics import Topology
from tests.waiting import eventually

FOUND_S = 10.0
MENDED_S = 90.0


class Patient:
    """workers: URLs, by service. beside: variables that a shell has where cures are typed."""

    def __init__(
        self, settings: Settings, topologies: Sequence[Topology], workers: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.beside: dict[str, str] = {}
        self.settings = settings
        self.admin = AdminClient(client_config(settings.bootstrap))
        self._topologies = topologies
        self._workers = workers or {}

    @property
    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, **self.settings.environment(), "PATH": path, **self.beside}

    def findings(self, code: str = "") -> list[Finding]:
        """Those whose code begins like this."""
        return [each for each in self.diagnosis().findings if each.code.startswith(code)]

    def diagnosis(self) -> Diagnosis:
        return diagnose(self._topologies, self._workers, self.settings)

    def await_finding(self, code: str) -> Finding:
        """The only one with this code."""
        (finding,) = eventually(lambda: self.findings(code), lambda found: len(found) == 1, FOUND_S)
        return finding

    def treat(self, finding: Finding) -> None:
        """Runs the cure as it is printed, to its end."""
        run = subprocess.run(
            finding.cure, shell=True, cwd=CHECKOUT, env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert run.returncode == 0, run.stdout + run.stderr

    def await_end(self, finding: Finding) -> None:
        eventually(lambda: finding in self.findings(), lambda left: not left, MENDED_S)

    def await_health(self, code: str = "") -> None:
        """Waits until nothing with this code is found; without a code, nothing at all."""
        eventually(lambda: self.findings(code), lambda found: found == [], MENDED_S)
