"""`dev.py kubernetes DIR`: what each topology needs on Kubernetes, as a Kustomize base.

All but `settings.env`, which is the team's, is made anew each time: what a team wants otherwise is in an overlay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from shared.http.health import ALIVE, READY
from shared.kafka.producer import MAX_UNANSWERED_BYTES
from shared.tables.memtables import LIMIT_BYTES
from shared.topology.topics import Topology

SETTINGS = "settings.env"
OPERATOR = "operator"
SECRETS = "/run/secrets/onefold"  # where the Secret of a process is mounted, one file for each key
LAG = "onefold_source_lag_records"
PORT = 8000

Object = dict[str, Any]

_HEAD = "# Made by `python3 dev.py kubernetes`, and made again: put what you want otherwise into an overlay.\n"
_SETTINGS_AT_FIRST = """\
# What all processes share. This file is yours: it is written once. docs/deployment.md#settings lists what there is;
# a change restarts the workers, one after the other.
ONEFOLD_BOOTSTRAP=kafka:9093
ONEFOLD_REPLICATION=3
ONEFOLD_MIN_ISR=2
ONEFOLD_AUTH=on
ONEFOLD_AUTH_ISSUER=https://issuer.example
ONEFOLD_AUTH_JWKS=https://issuer.example/keys
ONEFOLD_RATE_LIMIT=100
ONEFOLD_LOG_FORMAT=json
# the Ingress's network, or all clients count as one: ONEFOLD_TRUSTED_PROXIES=10.0.0.0/8
"""
_PART_OF = "app.kubernetes.io/part-of"
_ARGO = "argocd.argoproj.io"
_WAVE = f"{_ARGO}/sync-wave"
_USER = 10001  # as in the Dockerfile
_MIB = 1 << 20
_BLOCK_CACHE_MIB, _STORE_MIB, _REST_MIB = 64, 0.3, 128  # docs/deployment.md says of what
_PARITY_MIB = 2048  # of the driver, its JVM and a Python process for each core; docs/spark.md says of what
_PROVISION_S, _PARITY_S = 600, 3000  # the latter is less than its period: one that hangs would block all others
_LAG_OF_ONE = "1000"
_WORKERS = 2


def write(folder: Path, topologies: Iterable[Topology]) -> list[Path]:
    """Writes the base, and returns its files. `settings.env` stays as it is if it is there."""
    files = base(list(topologies))
    for name, objects in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(_HEAD + yaml.safe_dump_all(objects, sort_keys=False, width=120))
    if not (folder / SETTINGS).exists():
        (folder / SETTINGS).write_text(_SETTINGS_AT_FIRST)
    return [folder / name for name in (*files, SETTINGS)]


def base(topologies: list[Topology]) -> dict[str, list[Object]]:
    """The objects of each file. What scales by lag is a component of its own, as it needs an adapter of metrics."""
    services = {f"{each.service}.yaml": objects_of(each) for each in topologies}
    jobs = {"provision.yaml": [_provision()], "parity.yaml": [_parity()]}
    settings = [{"name": "onefold-settings", "envs": [SETTINGS]}]
    return {
        "kustomization.yaml": [
            _kustomization(
                "Kustomization",
                resources=[*services, *jobs],
                configMapGenerator=settings,
                generatorOptions={"annotations": {_WAVE: "-2"}},
            )
        ],
        **services,
        **jobs,
        "scaling/kustomization.yaml": [_kustomization("Component", resources=["lag.yaml"], patches=[_REPLICAS_LEFT])],
        "scaling/lag.yaml": [_scaled_by_lag(each) for each in topologies],
    }


def objects_of(topology: Topology) -> list[Object]:
    """A service's workers, how they are found, and how many of them may be away at once."""
    name = topology.service
    port = {"name": "http", "port": PORT, "targetPort": "http"}
    return [
        # a pod that restores one partition still answers its peers for the others
        _object("v1", "Service", _pods(name), name)
        | {
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": _labels(name),
                "ports": [port],
            }
        },
        _object("v1", "Service", name, name) | {"spec": {"selector": _labels(name), "ports": [port | {"port": 80}]}},
        _object("apps/v1", "StatefulSet", name, name) | {"spec": _stateful(topology)},
        _object("policy/v1", "PodDisruptionBudget", name, name)
        | {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": _labels(name)}}},
    ]


def memory_mib(topology: Topology) -> int:
    """What a worker that owns everything takes: cache, memtables and those that become files, each store, commands that
    brokers have not answered, and all else; in steps of 64 MiB.
    """
    stores = len(topology.all_tables()) * topology.partitions
    buffers_mib = (2 * LIMIT_BYTES + 3 * MAX_UNANSWERED_BYTES) / _MIB
    return 64 * math.ceil((_BLOCK_CACHE_MIB + _STORE_MIB * stores + _REST_MIB + buffers_mib) / 64)


def _stateful(topology: Topology) -> Object:
    name = topology.service
    container = _container(name, "onefold-worker", memory_mib(topology)) | {
        "args": ["worker", name],
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": _probe(READY, period_s=5, timeout_s=2, failures=3),
        # never on readiness: a worker that restores is alive
        "livenessProbe": _probe(ALIVE, period_s=10, timeout_s=5, failures=6),
        # no more requests are sent to it once all proxies know, and until then it answers
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
    }
    container["volumeMounts"].append({"name": "stores", "mountPath": "/var/lib/onefold/stores"})
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    pod = _pod(name, container) | {
        "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": [spread | {"labelSelector": {"matchLabels": _labels(name)}}],
    }
    return {
        "serviceName": _pods(name),
        "replicas": min(_WORKERS, topology.partitions),
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": _labels(name)},
        "template": {"metadata": {"labels": _labels(name)}, "spec": pod},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"},  # a cache
        "volumeClaimTemplates": [
            {
                "metadata": {"name": "stores"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}},
            }
        ],
    }


def _provision() -> Object:
    """Before the workers and after its settings by Argo CD's waves; else they start again until it is done. A job can't
    be changed: delete it before the next release, or wait for an hour.
    """
    container = _container(OPERATOR, "onefold-worker", 128) | {"args": ["provision"]}
    # not PreSync, in which its ConfigMap is not there yet
    hooks = {f"{_ARGO}/hook": "Sync", f"{_ARGO}/hook-delete-policy": "BeforeHookCreation", _WAVE: "-1"}
    job = _object("batch/v1", "Job", "provision", "provision")
    job["metadata"]["annotations"] = hooks
    return job | {"spec": {"ttlSecondsAfterFinished": 3600, **_job("provision", container, 3, _PROVISION_S)}}


def _parity() -> Object:
    """Each hour; fails when a live table is not the fold of its events."""
    container = _container(OPERATOR, "onefold-spark", _PARITY_MIB) | {
        "command": ["spark-submit", "--master", "local[2]", "/app/pipelines/__main__.py"],
        "args": ["parity"],
    }
    job = _job("parity", container, 0, _PARITY_S)
    spec = {"schedule": "23 * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": job}}
    return _object("batch/v1", "CronJob", "parity", "parity") | {"spec": spec}


def _scaled_by_lag(topology: Topology) -> Object:
    """Slow in both directions, as each step moves partitions; a worker above the partitions' number would be idle."""
    name = topology.service
    metric = {
        "type": "Pods",
        "pods": {"metric": {"name": LAG}, "target": {"type": "AverageValue", "averageValue": _LAG_OF_ONE}},
    }
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name},
        "minReplicas": min(_WORKERS, topology.partitions),
        "maxReplicas": topology.partitions,
        "metrics": [metric],
        "behavior": {"scaleUp": _one_each(120), "scaleDown": _one_each(300)},
    }
    return _object("autoscaling/v2", "HorizontalPodAutoscaler", name, name) | {"spec": spec}


def _one_each(period_s: int) -> Object:
    policy = {"type": "Pods", "value": 1, "periodSeconds": period_s}
    return {"stabilizationWindowSeconds": period_s, "policies": [policy]}


_REPLICAS_LEFT = {
    "target": {"kind": "StatefulSet", "labelSelector": f"{_PART_OF}=onefold"},  # an overlay may have others
    "patch": '[{"op": "remove", "path": "/spec/replicas"}]',  # else each rollout would set it back
}


def _job(name: str, container: Object, retries: int, limit_s: int) -> Object:
    pod = _pod(OPERATOR, container) | {"restartPolicy": "Never"}
    template = {"metadata": {"labels": _labels(name)}, "spec": pod}
    return {"backoffLimit": retries, "activeDeadlineSeconds": limit_s, "template": template}


def _pod(name: str, container: Object) -> Object:
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "secrets", "secret": {"secretName": name, "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def _container(name: str, image: str, mib: int) -> Object:
    memory = f"{mib}Mi"
    return {
        "name": "onefold",
        "image": image,
        "envFrom": [{"configMapRef": {"name": "onefold-settings"}}],
        "env": _environment(name),
        "resources": {"requests": {"cpu": "250m", "memory": memory}, "limits": {"memory": memory}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "secrets", "mountPath": SECRETS, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _environment(name: str) -> list[Object]:
    """What differs between services and between pods, in an order in which each refers to earlier ones only."""
    values = {
        # not the pod's address: started again, it keeps its name, its store and its place in the group
        "ONEFOLD_ADVERTISED_URL": f"http://$(ONEFOLD_INSTANCE).{_pods(name)}:{PORT}",
        "ONEFOLD_PEERS": f"*.{_pods(name)}",
        "ONEFOLD_AUTH_AUDIENCE": name,
        "ONEFOLD_KAFKA_USER": name,
        "ONEFOLD_KAFKA_PASSWORD_FILE": f"{SECRETS}/kafka-password",
        "ONEFOLD_KAFKA_CA": f"{SECRETS}/kafka-ca.pem",
        "ONEFOLD_PEER_SECRET_FILE": f"{SECRETS}/peer-secret",
    }
    persons = {"secretKeyRef": {"name": name, "key": "person-keys", "optional": True}}
    return [
        {"name": "ONEFOLD_INSTANCE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "ONEFOLD_PERSON_KEYS", "valueFrom": persons},
        *({"name": variable, "value": value} for variable, value in values.items()),
    ]


def _probe(path: str, period_s: int, timeout_s: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def _object(version: str, kind: str, name: str, component: str) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": _labels(component)}}


def _kustomization(kind: str, **fields: object) -> Object:
    version = "v1beta1" if kind == "Kustomization" else "v1alpha1"
    return {"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind, **fields}


def _labels(component: str) -> dict[str, str]:
    return {_PART_OF: "onefold", "app.kubernetes.io/component": component}


def _pods(name: str) -> str:
    """The headless Service, by which a pod has a name of its own."""
    return f"{name}-pods"
