"""What is generated for Kubernetes is what its API allows, says what the code says, and starts a process in prod.

The schema is Kubernetes 1.37's own for these kinds, which allows no field that it does not know. It is from
kubernetes-validate 1.37.0 (Apache-2.0), without descriptions and white space.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from shared.dev.authority import Authority
from shared.dev.kubernetes import SETTINGS, write
from shared.http.health import PROBES
from shared.operations.provision import load_topologies
from shared.runtime.settings import Principal, Settings, SettingsError, load_settings
from shared.topology.topics import Table, Topic, Topology
from tests.accounts.topology import TOPOLOGY
from tests.pods import Pod, image_environment, objects_in, pods_of, settings_in

SCHEMA = json.loads(Path(__file__).with_name("kubernetes-1.37.schema.json").read_text())
SECRETS_OF_ALL = {"kafka-password": "pw", "peer-secret": "x" * 40, "person-keys": "postgresql://keys/keys"}
CERTIFICATE = "kafka-ca.pem"
TEAMS = {  # a StatefulSet of the team's own
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "db"},
    "spec": {
        "replicas": 3,
        "serviceName": "db",
        "selector": {"matchLabels": {"is": "db"}},
        "template": {
            "metadata": {"labels": {"is": "db"}},
            "spec": {"containers": [{"name": "db", "image": "db"}]},
        },
    },
}
TOPOLOGIES = load_topologies() or [TOPOLOGY]
SERVICES = sorted(each.service for each in TOPOLOGIES)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kubernetes")
    write(folder, TOPOLOGIES)
    return folder


def wrong(each: Mapping[str, Any]) -> list[str]:
    """What the API would not take of an object."""
    version, kind = each["apiVersion"], each["kind"]
    (name,) = (
        name
        for name, schema in SCHEMA["$defs"].items()
        if schema.get("properties", {}).get("kind", {}).get("enum") == [kind]
        and schema["properties"]["apiVersion"]["enum"] == [version]
    )
    validator = jsonschema_rs.validator_for({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})
    return [f"{kind} {each['metadata']['name']}: {error.message}" for error in validator.iter_errors(each)]


def objects(folder: Path) -> Iterator[Any]:
    for file in sorted(folder.rglob("*.yaml")):
        if file.name != "kustomization.yaml":
            yield from yaml.safe_load_all(file.read_text())


def test_each_object_is_what_the_api_allows(base: Path) -> None:
    found = list(objects(base))
    assert len(found) == 5 * len(SERVICES) + 2
    assert [line for each in found for line in wrong(each)] == []


def test_a_field_that_the_api_does_not_know_is_found(base: Path) -> None:
    stateful = objects_in(base, "StatefulSet")[SERVICES[0]]
    stateful["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["httpGet"]["prt"] = 1
    assert len(wrong(stateful)) == 1


def test_every_service_has_workers_that_are_found_probed_and_never_all_away(base: Path) -> None:
    sets, services = objects_in(base, "StatefulSet"), objects_in(base, "Service")
    assert sorted(sets) == SERVICES
    for topology in TOPOLOGIES:
        spec = sets[topology.service]["spec"]
        labels = spec["template"]["metadata"]["labels"]
        headless, normal = services[spec["serviceName"]]["spec"], services[topology.service]["spec"]
        assert headless["clusterIP"] == "None"
        assert headless["publishNotReadyAddresses"] is True
        assert headless["selector"] == normal["selector"] == spec["selector"]["matchLabels"] == labels
        budget = objects_in(base, "PodDisruptionBudget")[topology.service]["spec"]
        assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, labels)
        (container,) = spec["template"]["spec"]["containers"]
        probes = container["livenessProbe"], container["readinessProbe"]
        assert {probe["httpGet"]["path"] for probe in probes} == PROBES
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert named == {"http": int(image_environment("worker").get("ONEFOLD_HTTP_PORT", "8000"))}
        assert {probe["httpGet"]["port"] for probe in probes} == {"http"}
        stores = next(mount for mount in container["volumeMounts"] if mount["name"] == "stores")
        assert stores["mountPath"] == image_environment("worker")["ONEFOLD_DATA_DIR"]


def test_no_more_workers_are_made_than_there_are_partitions(tmp_path: Path) -> None:
    commands = Topic("singles.commands.v1")
    write(tmp_path, [Topology("singles", (commands,), (Table("singles", commands),), partitions=1)])
    assert objects_in(tmp_path, "StatefulSet")["singles"]["spec"]["replicas"] == 1
    scaled = objects_in(tmp_path, "HorizontalPodAutoscaler")["singles"]["spec"]
    assert (scaled["minReplicas"], scaled["maxReplicas"]) == (1, 1)


@pytest.mark.parametrize("service", SERVICES)
def test_a_worker_in_prod_starts_with_the_settings_that_it_is_given(
    service: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stateful, settings = objects_in(base, "StatefulSet")[service], settings_in(base / SETTINGS)
    pod = pods_of(stateful, 2, settings=settings, secrets=secrets(), folder=tmp_path)[1]
    given = settings_of(pod, monkeypatch)
    assert (given.env, given.instance, given.auth_audience) == ("prod", f"{service}-1", service)
    assert given.principal == Principal(service, "pw", tmp_path / pod.name / "secrets" / CERTIFICATE)
    assert given.url == "http://127.0.0.3:8000"
    assert given.data_dir == tmp_path / pod.name / "stores"
    assert given.person_keys.get_secret_value() == SECRETS_OF_ALL["person-keys"]


@pytest.mark.parametrize("job", ["provision", "parity"])
def test_a_job_in_prod_starts_with_the_settings_that_it_is_given(
    job: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = objects_in(base, "Job") | objects_in(base, "CronJob")
    spec = found[job]["spec"].get("jobTemplate", found[job])["spec"]["template"]["spec"]
    given = settings_of(Pod(job, spec, settings_in(base / SETTINGS), secrets(), tmp_path), monkeypatch)
    assert (given.env, given.kafka_user) == ("prod", "operator")


def test_a_job_that_hangs_ends_and_parity_before_its_next_run(base: Path) -> None:
    provision, parity = objects_in(base, "Job")["provision"], objects_in(base, "CronJob")["parity"]["spec"]
    assert parity["schedule"].endswith(" * * * *")  # each hour
    assert 0 < provision["spec"]["activeDeadlineSeconds"] < 3600
    assert 0 < parity["jobTemplate"]["spec"]["activeDeadlineSeconds"] < 3600
    assert parity["jobTemplate"]["spec"]["backoffLimit"] == 0  # a difference is none less when it is found again


def test_a_setting_that_prod_refuses_is_refused_in_a_pod_too(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_in(base / SETTINGS) | {"ONEFOLD_REPLICATION": "1", "ONEFOLD_MIN_ISR": "1"}
    stateful = objects_in(base, "StatefulSet")[SERVICES[0]]
    (pod,) = pods_of(stateful, 1, settings=settings, secrets=secrets(), folder=tmp_path)
    with pytest.raises(SettingsError, match="ONEFOLD_REPLICATION=1 is too few"):
        settings_of(pod, monkeypatch)


def test_what_the_team_has_written_stays_and_the_rest_is_made_anew(tmp_path: Path) -> None:
    write(tmp_path, TOPOLOGIES)
    first = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    (tmp_path / SETTINGS).write_text("ONEFOLD_BOOTSTRAP=ours:9093\n")
    (tmp_path / "kustomization.yaml").write_text("edited")
    write(tmp_path, TOPOLOGIES)
    assert (tmp_path / SETTINGS).read_text() == "ONEFOLD_BOOTSTRAP=ours:9093\n"
    assert (tmp_path / "kustomization.yaml").read_text() == first[tmp_path / "kustomization.yaml"]
    assert {path.relative_to(tmp_path) for path in first} == {
        Path(name)
        for name in (
            "kustomization.yaml", "parity.yaml", "provision.yaml", SETTINGS, "scaling/kustomization.yaml",
            "scaling/lag.yaml", *(f"{service}.yaml" for service in SERVICES),
        )
    }  # fmt: skip


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl is on the PATH, which has Kustomize")
def test_kustomize_builds_an_overlay_that_scales_by_lag(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "base")
    image = {"name": "onefold-worker", "newName": "ours/worker", "newTag": "1.2"}
    overlay = {"resources": ["../base", "db.yaml"], "components": ["../base/scaling"], "images": [image]}
    (tmp_path / "prod").mkdir()
    (tmp_path / "prod" / "db.yaml").write_text(yaml.safe_dump(TEAMS))
    (tmp_path / "prod" / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    ran = subprocess.run(["kubectl", "kustomize", tmp_path / "prod"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    built = list(yaml.safe_load_all(ran.stdout))
    assert [line for each in built for line in wrong(each)] == []
    found = {each["metadata"]["name"]: each["spec"] for each in built if each["kind"] == "StatefulSet"}
    assert found.pop("db")["replicas"] == 3
    sets = list(found.values())
    assert len(sets) == len(SERVICES)
    assert [spec["replicas"] for spec in sets if "replicas" in spec] == []
    assert {spec["template"]["spec"]["containers"][0]["image"] for spec in sets} == {"ours/worker:1.2"}
    (config,) = (each for each in built if each["kind"] == "ConfigMap")
    assert config["data"] == settings_in(base / SETTINGS)
    (provision,) = (each for each in built if each["kind"] == "Job")
    hook = provision["metadata"]["annotations"]
    assert hook["argocd.argoproj.io/hook"] == "Sync"  # before it, nothing would be there that its pod refers to
    wave = "argocd.argoproj.io/sync-wave"
    assert int(config["metadata"]["annotations"][wave]) < int(hook[wave]) < 0
    named = ran.stdout.count(f"name: {config['metadata']['name']}\n")  # by its hash, so that a change is rolled out
    assert named == 1 + len(sets) + len(["provision", "parity"])


def secrets() -> dict[str, str]:
    return {**SECRETS_OF_ALL, CERTIFICATE: Authority().certificate.decode()}


def settings_of(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What the pod's process reads at its start. Raises SettingsError."""
    pod.prepare()
    for name in [name for name in os.environ if name.startswith("ONEFOLD_")]:
        monkeypatch.delenv(name)
    for name, value in pod.environment().items():
        monkeypatch.setenv(name, value)
    return load_settings()
