"""Adds a new service wherever an existing file names each service: to the compose files and to Prometheus' targets."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from shared.dev.renaming import renaming

COMPOSE = "docker-compose.yml"
SECURE = "compose.secure.yml"
DEV = "compose.dev.yml"
PROMETHEUS = "deploy/prometheus.yml"

_BLOCK = re.compile(
    r'^  (\w+):\n    <<: \*worker\n.*?ports: \["[^"]*:-(\d+)-(\d+)\}:\d+"\]\n', re.MULTILINE | re.DOTALL
)
_PORTS_A_SERVICE = 10
_FIRST_PORT = 8100
_NO_BLOCK = re.compile(r"^  # One block per service\..*\n", re.MULTILINE)
_NONE_LEFT = re.compile(r"^services:\n+\Z", re.MULTILINE)  # Compose takes no list without an entry
_PLAIN = {
    COMPOSE: "  name:\n    <<: *worker\n    command: [worker, name]\n"
    '    ports: ["127.0.0.1:${NAME_PORTS:-0-0}:8000"]\n',
    SECURE: "  name:\n    environment: {<<: *login, ONEFOLD_KAFKA_USER: name}\n"
    "    secrets: [ca, peers, {source: name, target: password}]\n",
    DEV: "  name:\n    <<: *edited\n    develop: {watch: [*shared, {action: rebuild, path: services/name}]}\n",
}


@dataclass(frozen=True, slots=True)
class Addition:
    """text: of the whole file, with the addition. what: describes the addition."""

    file: str
    text: str
    what: str


def additions(root: Path, like: str | None, name: str) -> list[Addition]:
    """One for each file that names `like`; without it, for each that can name services."""
    found = (
        _compose_block(root, like, name),
        _entries(root, SECURE, like, name, "a principal"),  # with a password of its own
        _entries(root, DEV, like, name, "watched"),
        _scrape(root, like, name),
    )
    return [each for each in found if each]


def forget(root: Path, service: str) -> None:
    """Removes a service, its unit tests and all entries of it, if there are any."""
    for folder in ("services", "tests/unit"):
        shutil.rmtree(root / folder / service, ignore_errors=True)
    entry, listed = rf"(?<=\n)\n?  {service}:.*\n(?:    .*\n)*", rf"(?<=\[){service}(?:, |(?=\]))|, {service}\b"
    for name, made in ((COMPOSE, entry), (SECURE, entry), (DEV, entry), (PROMETHEUS, listed)):
        if text := _text(root / name):
            (root / name).write_text(_NONE_LEFT.sub("services: {}\n", re.sub(made, "", text)))


def is_composed(root: Path, name: str) -> bool:
    """Whether the compose file has a block, or anything else, of that name."""
    return bool(re.search(rf"^  {name}:", _text(root / COMPOSE), re.MULTILINE))


def _compose_block(root: Path, like: str | None, name: str) -> Addition | None:
    """A block like that of `like`, after all others, with host ports of its own; None where `like` has none."""
    text = _text(root / COMPOSE)
    blocks = list(_BLOCK.finditer(text))
    models = [block[0] for block in blocks if block[1] == like] if like else [_PLAIN[COMPOSE]]
    last = blocks[-1] if blocks else _NO_BLOCK.search(text)
    if not models or not last:
        return None
    first = max((int(block[3]) for block in blocks), default=_FIRST_PORT - 1) + 1
    ports = f"{first}-{first + _PORTS_A_SERVICE - 1}"
    block = re.sub(r":-\d+-\d+\}", f":-{ports}}}", renaming({like or "name": name})(models[0]))
    apart = "\n" if blocks else ""
    text = f"{text[: last.end()]}{apart}{block}{text[last.end() :]}"
    return Addition(COMPOSE, text, f"{name}, on host ports {ports}")


def _entries(root: Path, file: str, like: str | None, name: str, what: str) -> Addition | None:
    """Each entry of `like` in `file`, followed by the same for `name`; without `like`, plain ones after all others."""
    text = _text(root / file)
    if not text:
        return None
    text, times = _doubled(text, like, name) if like else _appended(text, _PLAIN[file], name)
    return Addition(file, text, f"{name}, {what}") if times else None


def _doubled(text: str, like: str, name: str) -> tuple[str, int]:
    rename = renaming({like: name})
    entries = re.compile(rf"^  {like}:.*\n(?:    .*\n)*\n?", re.MULTILINE)

    def twice(entry: re.Match[str]) -> str:
        apart = "\n" if entry[0].count("\n") > 1 and not entry[0].endswith("\n\n") else ""  # the last block of a file
        return entry[0] + apart + rename(entry[0])

    return entries.subn(twice, text)


def _appended(text: str, entry: str, name: str) -> tuple[str, int]:
    services, secrets, passwords = text.partition("\nsecrets:\n")
    services = services.rstrip("\n").replace("\nservices: {}", "\nservices:") + "\n"
    apart = "" if services.endswith("\nservices:\n") else "\n"
    added = renaming({"name": name})(entry)
    password = f"  {name}: {{file: .onefold/secrets/passwords/{name}}}\n" if secrets else ""
    return f"{services}{apart}{added}{secrets}{passwords}{password}", 1


def _scrape(root: Path, like: str | None, name: str) -> Addition | None:
    """Scraped by Prometheus, if `like` is."""
    scraped = rf"\b{like}\b[^\]]*" if like else ""
    listed = re.compile(rf"(?<= names: \[)[^\]]*{scraped}(?=\])")
    text, times = listed.subn(lambda found: ", ".join(filter(None, (found[0], name))), _text(root / PROMETHEUS))
    return Addition(PROMETHEUS, text, name) if times else None


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""
