"""Plays the node for a pod of the base that `dev.py kubernetes` writes: a local process with the manifest's own
command, environment, secrets, volumes and probes.

A process here shares files and network with others. So a mount is a folder, and a name that the cluster's DNS would
resolve is replaced by an address of loopback, of which each pod has one of its own, as its container has its port.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import yaml

from shared.runtime.child import Child
from tests.waiting import eventually

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
UNFORCED = 10  # times the grace of the manifest, as the machine is busy


def objects_in(folder: Path, kind: str) -> dict[str, Any]:
    """Those of a kind in all files of a base, by name."""
    found = [each for file in sorted(folder.rglob("*.yaml")) for each in yaml.safe_load_all(file.read_text())]
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


def settings_in(file: Path) -> dict[str, str]:
    """What Kustomize makes a ConfigMap of: a line for each, and comments."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@cache
def image_environment(target: str) -> Mapping[str, str]:
    """The ENV of a stage of the Dockerfile and of those that it is made from."""
    stages = {
        name: (origin, body)
        for origin, name, body in re.findall(
            r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", (ROOT / "Dockerfile").read_text(), re.MULTILINE | re.DOTALL
        )
    }
    origin, body = stages[target]
    lines = re.findall(r"^ENV ((?:.*\\\n)*.*)$", body, re.MULTILINE)
    own = dict(each.split("=", 1) for line in lines for each in shlex.split(line.replace("\\\n", " ")))
    return {**(image_environment(origin) if origin in stages else {}), **own}


@dataclass
class Pod:
    """spec: of the manifest. settings: of the ConfigMap. secrets: of the Secret, by key. folder: of its volumes, log.

    names: what the cluster's DNS resolves, and the addresses here.
    """

    name: str
    spec: Mapping[str, Any]
    settings: Mapping[str, str]
    secrets: Mapping[str, str]
    folder: Path
    address: str = "127.0.0.1"
    names: Mapping[str, str] = field(default_factory=dict)
    _process: Child | None = None

    @property
    def container(self) -> Mapping[str, Any]:
        (only,) = self.spec["containers"]
        return dict(only)

    @property
    def port(self) -> int:
        return next(int(each["containerPort"]) for each in self.container["ports"] if each["name"] == "http")

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code if self._process else None

    def environment(self) -> dict[str, str]:
        """As kubelet makes it, with what is here in place of mounts and names."""
        image = image_environment(self.container["image"].removeprefix("onefold-"))
        found = {name: value for name, value in image.items() if name not in ("PATH", "PYTHONPATH")}
        assert self.container["envFrom"] == [{"configMapRef": {"name": "onefold-settings"}}]
        found |= self.settings
        for entry in self.container["env"]:
            if (value := self._value(entry)) is not None:
                found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda each: found.get(each[1], each[0]), value)
        here = {name: self._here(value) for name, value in found.items()}
        own = {"HOSTNAME": self.name, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        return here | {"ONEFOLD_HTTP_HOST": self.address} | own

    def prepare(self) -> None:
        """Its volumes; what was in them before stays."""
        for mount in self.container["volumeMounts"]:
            self._folder_of(mount).mkdir(parents=True, exist_ok=True)
            if mount["name"] == "secrets":
                for key, value in self.secrets.items():
                    (self._folder_of(mount) / key).write_text(value)

    def start(self) -> None:
        self.prepare()
        entrypoint = self.container.get("command", [str(ROOT / "deploy" / "entrypoint")])
        self._process = Child([*entrypoint, *self.container["args"]], self.log, ROOT, self.environment())

    def await_ready(self) -> None:
        """Alive first, and from then on, also while it is not ready."""
        eventually(lambda: self._exited() or self.probe("livenessProbe"))
        eventually(lambda: self._exited() or (self.probe("livenessProbe") and self.probe("readinessProbe")))

    def await_done(self) -> int:
        """The exit code of a job's pod."""
        exit_code = eventually(lambda: self.exit_code, lambda found: found is not None)
        self.kill()
        return exit_code or 0

    def probe(self, kind: str) -> bool:
        probe = self.container[kind]
        assert probe["httpGet"]["port"] == "http"
        connection = HTTPConnection(self.address, self.port, timeout=UNFORCED * probe["timeoutSeconds"])
        try:
            connection.request("GET", probe["httpGet"]["path"])
            return 200 <= connection.getresponse().status < 400
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def stop(self) -> bool:
        """SIGTERM; whether it ended by itself, and well. `preStop` is not played: it is for proxies that learn late."""
        assert self._process is not None
        self._process.terminate(signal.SIGTERM)
        self._process.wait(UNFORCED * self.spec["terminationGracePeriodSeconds"])
        ended = self.exit_code == 0
        self.kill()
        return ended

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _exited(self) -> bool:
        """Raises AssertionError with the end of its log."""
        if self.exit_code is not None:
            raise AssertionError(f"{self.name} ended with {self.exit_code}: {self.log.read_text()[-3000:]}")
        return False

    def _value(self, entry: Mapping[str, Any]) -> str | None:
        match entry:
            case {"value": str(value)}:
                return value
            case {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}:
                return self.name
            case {"valueFrom": {"secretKeyRef": {"key": key, "optional": True}}}:
                return self.secrets.get(key)
        raise AssertionError(f"no node gives this: {entry}")

    def _here(self, value: str) -> str:
        for mount in self.container["volumeMounts"]:
            if value == mount["mountPath"] or value.startswith(f"{mount['mountPath']}/"):
                return str(self._folder_of(mount)) + value.removeprefix(mount["mountPath"])
        for name, address in self.names.items():
            value = value.replace(name, address)
        return value

    def _folder_of(self, mount: Mapping[str, Any]) -> Path:
        return self.folder / str(mount["name"])


def pods_of(stateful: Mapping[str, Any], count: int, **rest: Any) -> Sequence[Pod]:
    """A StatefulSet's pods, each with a name and an address of its own."""
    name, headless = stateful["metadata"]["name"], stateful["spec"]["serviceName"]
    addresses = {f"{name}-{number}": f"127.0.0.{number + 2}" for number in range(count)}
    names = {f"{pod}.{headless}": address for pod, address in addresses.items()} | {f"*.{headless}": "127.0.0.0/8"}
    spec, folder = stateful["spec"]["template"]["spec"], rest.pop("folder")
    return [
        Pod(pod, spec, folder=folder / pod, address=address, names=names, **rest) for pod, address in addresses.items()
    ]
