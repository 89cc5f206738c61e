"""Every service has its block in docker-compose.yml, and nothing there is left to chance."""

from __future__ import annotations

import re
from pathlib import Path

from shared.dev.stack import found_services

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^  (?P<name>[a-z-]+):\n    <<: \*worker\n    command: \[worker, (?P<service>\w+)\]\n"
    r'    ports: \["127\.0\.0\.1:\$\{\w+_PORTS:-(?P<ports>\d+-\d+)\}:8000"\]\n',
    re.MULTILINE,
)


def test_every_service_has_a_block_with_host_ports_of_its_own() -> None:
    blocks = [match.groupdict() for match in BLOCK.finditer((ROOT / "docker-compose.yml").read_text())]
    assert sorted(block["service"] for block in blocks) == found_services()
    assert len({block["ports"] for block in blocks}) == len(blocks)


def test_every_service_signs_in_by_its_own_name() -> None:
    users = re.findall(r"ONEFOLD_KAFKA_USER: (\w+)\}", (ROOT / "compose.secure.yml").read_text())
    assert sorted(users) == found_services()


def test_every_service_can_be_edited_while_it_runs() -> None:
    watched = re.findall(r"^  (\w+):\n.*\n.*path: services/\1\}", (ROOT / "compose.dev.yml").read_text(), re.MULTILINE)
    assert sorted(watched) == found_services()


def test_every_image_has_a_version() -> None:
    files = "\n".join(file.read_text() for file in sorted(ROOT.glob("*compose*.yml")))
    ours = {"onefold-worker", "onefold-demo", "onefold-mirror", "onefold-spark"}
    images = set(re.findall(r"^\s+image: (\S+)", files, re.MULTILINE)) - ours
    images |= set(re.findall(r"^FROM (\S+/\S+|\S+:\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    assert images
    assert [image for image in images if not re.search(r":v?\d+\.\d+[\w.-]*$", image)] == []
