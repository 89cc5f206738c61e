"""How Compose runs a new service and Prometheus scrapes it: by files in its folder, and a line in each list."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

_COMPOSE = "docker-compose.yml", "compose.secure.yml"
LIST = "services/compose.yml"
SCRAPED = "services/prometheus.yml"

_NONE = "include: []\n"  # Compose takes no list without an entry
_LINES = {
    LIST: '  - "{}/deploy/${{SERVICES_AS:-compose}}.yml"\n',
    SCRAPED: "      - {{names: [{}], type: A, port: 8000, refresh_interval: 5s}}\n",
}
_AFTER = {  # the last of these: a team lists what is its own below them
    LIST: re.compile(r'^include:\n|^  - "\w+/deploy/.*\n', re.MULTILINE),
    SCRAPED: re.compile(r"^    dns_sd_configs:\n|^      - \{names: .*\n", re.MULTILINE),
}
_PORTS = re.compile(r"(?<=_PORTS:-)(?:\d+-)?(\d+)(?=\})")
_PORTS_A_SERVICE = 10
_FIRST_PORT = 8100
_PLAIN = {
    "compose.yml": """\
services:
  SERVICE:
    extends: {file: ../../../deploy/containers.yml, service: worker}
    command: [worker, SERVICE]
    ports: ["127.0.0.1:${SERVICE_PORTS:-0-0}:8000"]
""",
    "secure.yml": """\
services:
  SERVICE:
    extends: {file: ../../../deploy/containers.yml, service: signed-in}
    environment: {ONEFOLD_KAFKA_USER: SERVICE}
    secrets: [{source: SERVICE, target: password}]

secrets:
  SERVICE: {file: ../../../.onefold/secrets/passwords/SERVICE}
""",
    "dev.yml": """\
services:
  SERVICE:
    extends: {file: ../../../deploy/containers.yml, service: edited}
    develop: {watch: [{action: rebuild, path: ..}]}
""",
}


def plain(service: str) -> dict[str, str]:
    """The files of a service that is like no other, by their paths in the checkout."""

    def of_it(text: str) -> str:
        return text.replace("SERVICE_PORTS", f"{service.upper()}_PORTS").replace("SERVICE", service)

    return {f"services/{service}/deploy/{file}": of_it(text) for file, text in _PLAIN.items()}


def listed(root: Path, service: str) -> dict[str, str]:
    """The texts of the lists, with the service in them, of those that there are."""
    texts = {file: text for file in _LINES if (text := _text(root / file))}
    return {file: _with(text.replace(_NONE, "include:\n"), file, service) for file, text in texts.items()}


def _with(text: str, file: str, service: str) -> str:
    end = max((found.end() for found in _AFTER[file].finditer(text)), default=len(text))
    return text[:end] + _LINES[file].format(service) + text[end:]


def with_ports(root: Path, compose: str) -> tuple[str, str]:
    """A service's compose.yml on host ports that no other has, and which they are."""
    texts = (path.read_text() for path in root.glob("services/*/deploy/compose.yml"))
    taken = (int(last) for text in texts for last in _PORTS.findall(text))
    first = max(taken, default=_FIRST_PORT - 1) + 1
    ports = f"{first}-{first + _PORTS_A_SERVICE - 1}"
    return _PORTS.sub(ports, compose), ports


def forget(root: Path, service: str) -> None:
    """Removes a service, its unit tests and its lines in the lists, if there are any."""
    for folder in ("services", "tests/unit"):
        shutil.rmtree(root / folder / service, ignore_errors=True)
    for file, line in _LINES.items():
        if text := _text(root / file):
            left = text.replace(line.format(service), "")
            (root / file).write_text(re.sub(r"^include:\n\Z", _NONE, left, flags=re.MULTILINE))


def composed_in(root: Path, name: str) -> str | None:
    """Which of Compose's files has a block, a secret or anything else of that name."""
    return next((file for file in _COMPOSE if re.search(rf"^  {name}:", _text(root / file), re.MULTILINE)), None)


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""
