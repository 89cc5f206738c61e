"""The Compose files name every service, agree with each other and pin every image."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.dev.kubernetes import memory_mib
from shared.operations.provision import load_topologies
from shared.runtime.checkout import found_services

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
CONTAINERS = ROOT / "deploy" / "containers.yml"


def of_services(file: str) -> dict[str, dict[str, Any]]:
    """What the files of this name say of each service."""
    texts = (path.read_text() for path in ROOT.glob(f"services/*/deploy/{file}"))
    return {name: block for text in texts for name, block in yaml.safe_load(text)["services"].items()}


def composed() -> list[str]:
    """The services that Compose runs: a team may run others elsewhere, and containers of its own beside them."""
    return [name for name in found_services() if (ROOT / "services" / name / "deploy").exists()]


def test_every_service_runs_on_host_ports_of_its_own() -> None:
    listed = yaml.safe_load((ROOT / "services" / "compose.yml").read_text())["include"]
    assert {f"{name}/deploy/${{SERVICES_AS:-compose}}.yml" for name in composed()} <= {*listed}
    blocks = {name: block for name, block in of_services("compose.yml").items() if name in composed()}
    commands = {name: block["command"] for name, block in blocks.items()}
    assert commands == {name: ["worker", name] for name in composed()}
    ports = [port for block in blocks.values() for port in block["ports"]]
    assert len({re.sub(r"\w+_PORTS", "", port) for port in ports}) == len(ports) == len(blocks)
    assert all(re.fullmatch(r"127\.0\.0\.1:\$\{\w+_PORTS:-\d+(-\d+)?\}:8000", port) for port in ports)


def test_every_service_signs_in_by_its_own_name() -> None:
    blocks = of_services("secure.yml")
    users = {name: blocks[name]["environment"]["ONEFOLD_KAFKA_USER"] for name in composed()}
    assert users == {name: name for name in composed()}


def test_on_three_brokers_every_container_that_creates_topics_makes_three_replicas() -> None:
    makers = re.findall(
        r"^  ([\w-]+):\n(?:    .*\n)*?.*(?:\[provision\]|spark-submit)", COMPOSE.read_text(), re.MULTILINE
    )
    durable = (ROOT / "compose.cluster.yml").read_text()
    assert re.findall(r"^  ([\w-]+):\n    environment: \*copies$", durable, re.MULTILINE) == makers
    assert makers == ["topics", "spark", "parity"]


def test_starting_any_spark_container_builds_the_spark_image_exactly_once() -> None:
    blocks = dict(re.findall(r"^  ([\w-]+):\n((?:    .*\n)+)", COMPOSE.read_text(), re.MULTILINE))
    spark = {name: block for name, block in blocks.items() if "<<: *spark\n" in block}
    # two concurrent builds of one tag collide
    (builder,) = (name for name, block in spark.items() if "target: spark}" in block)

    def with_needs(name: str) -> set[str]:
        return {name}.union(*map(with_needs, re.findall(r"^      ([\w-]+): {condition:", blocks[name], re.MULTILINE)))

    assert [name for name in spark if builder not in with_needs(name)] == []


def test_spark_sorts_on_a_disk_and_its_commands_start_in_a_folder_that_executors_share() -> None:
    declared = yaml.safe_load(COMPOSE.read_text())
    of_spark = [each for each in declared["services"].values() if each["image"].endswith("-spark")]
    ((named, folder),) = {tuple(volume.split(":")) for each in of_spark for volume in each["volumes"]}
    assert named in declared["volumes"]
    for each in of_spark:
        assert each["working_dir"] == folder
        assert Path(each["environment"]["SPARK_LOCAL_DIRS"]).is_relative_to(folder)
        assert [place for place in each["tmpfs"] if Path(folder).is_relative_to(place.partition(":")[0])] == []
    assert f"install --directory --owner=onefold --group=onefold {folder}\n" in (ROOT / "Dockerfile").read_text()


def test_under_compose_spark_has_as_few_tasks_a_step_as_on_one_machine() -> None:
    """Delta and the search for files have thousands by default, each of which costs as much as all the rows here."""
    of_tasks = re.findall(r'"(spark\.[\w.]+)": str\(tasks\)', (ROOT / "pipelines" / "session.py").read_text())
    settings = dict(re.findall(r"^(spark\S+) +(\S+)$", (ROOT / "deploy/spark-defaults.conf").read_text(), re.MULTILINE))
    assert [settings.get(name) for name in of_tasks] == ["8"] * 3


@pytest.mark.parametrize("stage", ["spark-packages", "mirror-packages"])
def test_a_stage_that_fetches_jars_has_every_module_that_it_imports(stage: str, tmp_path: Path) -> None:
    """It copies single files, so that an edit of any other fetches nothing again."""
    (block,) = re.findall(rf"^FROM \S+ AS {stage}\n((?:.+\n)+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for files, folder in re.findall(r"^COPY (.+) (\S+/)$", block, re.MULTILINE):
        for pattern in files.split():
            for file in ROOT.glob(pattern):
                (tmp_path / folder).mkdir(parents=True, exist_ok=True)
                shutil.copy(file, tmp_path / folder)
    (imports,) = re.findall(r'python -c "(from \S+ import [\w, ]+);', block)
    command = [sys.executable, "-P", "-c", imports]
    ran = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_compose_watch_covers_every_service() -> None:
    blocks = of_services("dev.yml")
    watched = {name: blocks[name]["develop"]["watch"] for name in composed()}
    assert watched == {name: [{"action": "rebuild", "path": ".."}] for name in composed()}


@pytest.mark.skipif(not shutil.which("timeout"), reason="macOS has no `timeout`; the image has one")
@pytest.mark.parametrize(
    ("run", "limit_s", "agreed", "pause"),
    [
        ("exit 0", "60", True, "3600"),
        ("exit 1", "60", False, "3600"),
        ("exit 2", "60", False, "30"),  # nothing could be compared, as before the broker is there
        ("exec /bin/sleep 60", "0.2", False, "3600"),
    ],
)
def test_parity_counts_as_agreed_only_if_its_last_run_succeeded(
    run: str, limit_s: str, agreed: bool, pause: str, tmp_path: Path
) -> None:
    script = re.search(r"^  parity:\n(?:.*\n)*?      - >-\n((?: {8}.*\n)+)", COMPOSE.read_text(), re.MULTILINE)
    assert script is not None
    mark = tmp_path / "agreed"
    if not agreed:
        mark.touch()  # left by the run before
    for name, does in {"spark-submit": run, "sleep": f"echo $1 > {tmp_path}/pause; kill $PPID"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    loop = " ".join(script[1].split()).replace("/tmp/agreed", str(mark)).replace("$$", "$")
    environment = {"PATH": f"{tmp_path}:{os.defpath}", "PARITY_LIMIT_S": limit_s}
    subprocess.run(["sh", "-c", loop], env=environment, timeout=30)
    assert mark.exists() is agreed
    assert (tmp_path / "pause").read_text() == f"{pause}\n"


def test_an_image_starts_as_prod_unless_compose_says_dev() -> None:
    stages = re.findall(r"^FROM (\S+) AS (\S+)\n(.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    (_, base, settings), *others = stages
    assert "ONEFOLD_ENV=prod" in settings.split()
    assert {origin for origin, _, _ in others} <= {base, *(name for _, name, _ in others)}
    task = yaml.safe_load(CONTAINERS.read_text())["services"]["task"]
    assert task["environment"]["ONEFOLD_ENV"] == "dev"
    ours = [
        block for block in yaml.safe_load(COMPOSE.read_text())["services"].values() if "PROJECT_NAME" in block["image"]
    ]
    assert [
        block for block in ours if block.get("extends") != {"file": "deploy/containers.yml", "service": "task"}
    ] == []


def test_a_worker_that_owns_everything_stays_within_its_memory() -> None:
    usual = yaml.safe_load(CONTAINERS.read_text())["services"]["worker"]["mem_limit"]
    blocks, needed = of_services("compose.yml"), {each.service: memory_mib(each) for each in load_topologies()}
    limits = {name: mib_of(str(blocks[name].get("mem_limit", usual))) for name in composed()}
    assert {name: needed[name] for name, limit in limits.items() if needed[name] > limit} == {}


def mib_of(size: str) -> float:
    """As Compose reads it: 384m, 1g, 1.5gb."""
    number, unit = re.fullmatch(r"([\d.]+)([bkmg]?)b?", size.lower()).groups()  # type: ignore[union-attr]
    return float(number) * 1024.0 ** ("bkmg".find(unit) - 2)


def test_every_image_has_a_version_or_is_this_projects_own() -> None:
    files = "\n".join(file.read_text() for file in [*ROOT.glob("*compose*.yml"), CONTAINERS])
    images = set(re.findall(r"^\s+image: (?!\$\{COMPOSE_PROJECT_NAME\}-\w+)(\S+)", files, re.MULTILINE))
    images |= set(re.findall(r"^FROM (\S+/\S+|\S+:\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    assert images
    assert [image for image in images if not re.search(r":v?\d+\.\d+[\w.-]*$", image)] == []
