"""Each condition is made on a real system, found, and mended by the cure that is printed, as it is printed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from shared.dev.stack import Stack
from shared.dev.worker import Worker, app_command, free_port
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from shared.kafka.producer import producer_config
from shared.operations.provision import load_topologies, provision, set_config
from shared.runtime.checkout import CHECKOUT
from shared.topology.topics import HOUR_MS, Topic, Topology
from tests.accounts.topology import COMMANDS, EVENTS, TOPOLOGY
from tests.doctor import lone
from tests.doctor.patient import FOUND_S, MENDED_S, Patient
from tests.engine.parked import send
from tests.faults.load import command
from tests.waiting import eventually

pytestmark = pytest.mark.broker

BRIEF = Topic("vouchers.copies.v1", retention_ms=HOUR_MS)
VOUCHERS = Topology("vouchers", (BRIEF,), partitions=1)


OUTCOMES = f"{TOPOLOGY.service}-accounts-outcomes-changelog"
TIMESTAMPS = "message.timestamp.type"


def patient_of(stack: Stack) -> Patient:
    """With its workers."""
    return Patient(stack.settings, [TOPOLOGY], {TOPOLOGY.service: stack.urls(TOPOLOGY.service)})


@pytest.mark.long  # in short, what former versions leave is removed
def test_settings_with_which_records_are_lost_are_put_right_while_workers_run(stack: Stack) -> None:
    patient = patient_of(stack)
    patient.await_health()
    set_config(patient.admin, EVENTS.name, "unclean.leader.election.enable", "true")
    set_config(patient.admin, EVENTS.name, TIMESTAMPS, "CreateTime")
    set_config(patient.admin, OUTCOMES, "cleanup.policy", "delete")  # instead of two policies
    for each in eventually(patient.findings, lambda found: len(found) == 3, FOUND_S):
        assert each.code == "topic.setting"
        patient.treat(each)
        patient.await_end(each)
    patient.await_health()


@pytest.mark.long  # in short, the finding, in tests/engine/test_blocked
def test_a_transaction_that_somebody_left_open_is_ended(stack: Stack) -> None:
    patient = patient_of(stack)
    patient.await_health()
    config = producer_config(stack.bootstrap, transactional_id="somebody-else")
    forgotten = Producer(config | {"transaction.timeout.ms": 120_000})
    forgotten.init_transactions(30)
    forgotten.begin_transaction()
    forgotten.produce(EVENTS.name, b"half", b"done", 5)  # where no command is read: a worker would miss its row
    assert forgotten.flush(30) == 0
    finding = patient.await_finding("transaction.open")
    assert "somebody-else" in finding.evidence
    patient.treat(finding)
    patient.await_health()


def test_a_record_that_nobody_can_read_is_tried_again_and_then_given_up(stack: Stack) -> None:
    patient = patient_of(stack)
    patient.await_health()
    send(stack.bootstrap, 0, b"bob", b"this is no command")
    first = patient.await_finding("record.parked")
    assert " retry " in first.cure
    patient.treat(first)
    (again,) = eventually(lambda: patient.findings("record"), lambda found: " discard " in found[0].cure, MENDED_S)
    patient.treat(again)
    patient.await_health()


def test_a_healthy_worker_tells_of_its_machine_and_its_rows(stack: Stack) -> None:
    patient = patient_of(stack)
    patient.await_health()
    (capacity,) = eventually(lambda: patient.diagnosis().capacities)
    assert (capacity.workers, capacity.service) == (2, TOPOLOGY.service)
    member = httpx.get(f"{stack.workers[0].url}/cluster").json()["members"][0]
    metrics = httpx.get(f"{member['url']}/metrics").text
    for figure in ("disk_bytes", "disk_free_bytes", "memory_limit_bytes"):
        assert f"\nonefold_{figure} " in metrics
        assert member["machine"][figure] > 0


@pytest.mark.slow
def test_a_key_with_all_the_work_is_named_while_it_has_that(stack: Stack) -> None:
    """Its remedy is another key, so it ends with the work."""
    patient = patient_of(stack)
    patient.await_health()
    partition = partition_of(b"busy", TOPOLOGY.partitions)
    for batch in range(100):  # as much as takes longer than the time over which work is measured
        names = [f"{batch}-{number}" for number in range(5_000)]
        send(stack.bootstrap, partition, b"busy", *(command("busy", each, "account.open", {}) for each in names))
        if found := patient.findings("key.hot"):
            break
    assert "'busy' has 100% of the records, 100% of the bytes, 100% of the time" in found[0].evidence
    assert f"of {COMMANDS.name}/{partition} of {TOPOLOGY.service}" in found[0].what
    patient.await_health("key.hot")


@pytest.mark.long  # in short, the finding, in tests/unit/doctor
def test_unread_records_outlive_a_short_retention(stack: Stack) -> None:
    patient = Patient(stack.settings, [VOUCHERS])
    provision([VOUCHERS], stack.settings)
    set_config(patient.admin, BRIEF.name, TIMESTAMPS, "CreateTime")  # so that a record can be old
    producer = Producer(producer_config(stack.bootstrap))
    producer.produce(BRIEF.name, b"unread", b"key", 0, timestamp=int(time.time() * 1000) - 2 * HOUR_MS // 3)
    assert producer.flush(30) == 0
    Brokers(stack.bootstrap).commit(VOUCHERS.group, {BRIEF.name: {0: 0}})
    patient.treat(patient.await_finding("retention.unread"))
    patient.await_health("retention.unread")
    assert [each.evidence for each in patient.findings("topic.setting") if "retention" in each.evidence] == []


def test_what_former_versions_leave_is_removed_and_nothing_else(stack: Stack) -> None:
    former, before, present = (Topology("coupons", (), partitions=1, version=version) for version in (1, 2, 3))
    for each in (former, before, present):
        provision([each], stack.settings)
    folder = stack.settings.store_dir(former.group)
    folder.mkdir(parents=True)
    patient = Patient(stack.settings, [present])
    assert patient.findings("topic.left") == []  # nobody has gone on to the present version
    Brokers(stack.bootstrap).commit(present.group, {present.parking.name: {0: 0}})
    for code in ("topic.left", "store.left"):
        patient.treat(patient.await_finding(code))
        patient.await_health(code)
    assert Brokers(stack.bootstrap).has(before.parking.name)
    assert not Brokers(stack.bootstrap).has(former.parking.name)
    assert not folder.exists()


@pytest.mark.long  # in short, what former versions leave is removed
def test_topics_that_are_missing_or_of_another_shape_are_made(stack: Stack) -> None:
    """Of a service of this checkout that does not run here."""
    others = [each for each in load_topologies() if each.service != TOPOLOGY.service]
    if not others:
        pytest.skip("there is no other service")
    patient = Patient(stack.settings, others)
    patient.treat(patient.await_finding("topic.missing"))
    patient.await_health()
    name, partitions = others[0].dead_letters.name, others[0].partitions
    patient.admin.create_partitions([NewPartitions(name, partitions + 1)])[name].result()
    patient.treat(patient.await_finding("topic.partitions"))
    patient.await_health()


@contextmanager
def going(command: str, environment: dict[str, str], log: Path) -> Iterator[None]:
    """A command that runs until it is ended."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            shell=True,
            cwd=CHECKOUT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
            eventually(lambda: not of_group(process.pid))


def of_group(leader: int) -> list[str]:
    return subprocess.run(["ps", "-o", "pid=", "-g", str(leader)], capture_output=True, text=True).stdout.split()


@pytest.mark.long  # in short, the finding, in tests/unit/doctor
def test_a_worker_that_is_in_the_group_and_silent_is_named_and_started(stack: Stack) -> None:
    patient = patient_of(stack)
    patient.await_health()
    _, silent = stack.workers
    silent.pause()
    finding = patient.await_finding("worker.silent")
    assert finding.cure.startswith(f"start {silent.url} again")
    silent.kill()
    silent.start()
    patient.await_health()


@pytest.mark.long  # in short, the findings, in tests/unit/doctor
@pytest.mark.slow
def test_a_service_without_workers_and_one_without_standbys_get_a_worker(stack: Stack, tmp_path: Path) -> None:
    patient = patient_of(stack)
    first, second = stack.workers
    second.stop()
    environment = patient.environment | {"ONEFOLD_INSTANCE": "3", "ONEFOLD_HTTP_PORT": str(free_port())}
    with going(patient.await_finding("standby.missing").cure, environment, tmp_path / "worker.log"):
        patient.await_health("standby.missing")
    first.stop()
    number = partition_of(b"bob", TOPOLOGY.partitions)
    send(stack.bootstrap, number, b"bob", command("bob", "waits", "account.charge", {"amount_cents": 5}))
    with going(patient.await_finding("service.stands").cure, environment, tmp_path / "worker.log"):
        patient.await_health("service.stands")
    first.start()
    second.start()


@pytest.mark.long  # in short, the finding, in tests/unit/doctor
def test_a_worker_without_any_use_is_stopped(stack: Stack, tmp_path: Path) -> None:
    settings, service = stack.settings.model_copy(update={"standbys": 0}), lone.TOPOLOGY.service
    provision([lone.TOPOLOGY, lone.VISITS], settings)
    command = app_command(lone.__name__)
    workers = [Worker(service, each, settings, tmp_path / f"{each}.log", lambda _: command) for each in ("1", "2")]
    for each in workers:
        each.start()
    patient = Patient(settings, [lone.TOPOLOGY], {service: [each.url for each in workers]})
    surplus = patient.await_finding("worker.surplus")
    patient.treat(surplus)
    (left,) = [each for each in workers if each.running]
    assert left.url not in surplus.cure
    patient.await_health()
    for each in workers:
        each.stop()


@pytest.mark.long  # in short, the finding, in tests/unit/doctor
def test_a_clock_that_is_wrong_is_synchronised(stack: Stack, tmp_path: Path) -> None:
    """The worker's is Python's alone, and what would set that of the machine sets it."""
    patient, clock, machine = patient_of(stack), tmp_path / "clock", tmp_path / "machine"
    patient.await_health()
    clock.write_text("20")
    machine.mkdir()
    for name, script in {"sudo": 'exec "$@"', "timedatectl": f'[ "$*" = "set-ntp true" ] && echo 0 > {clock}'}.items():
        (machine / name).write_text(f"#!/bin/sh\n{script}\n")
        (machine / name).chmod(0o755)
    patient.beside["PATH"] = f"{machine}{os.pathsep}{patient.environment['PATH']}"
    with as_command(stack.workers[1], ["tests.queries.ahead", str(clock)]) as ahead:
        httpx.post(f"{ahead.url}/accounts/late", trust_env=False).raise_for_status()
        finding = patient.await_finding("worker.clock")
        assert "s ahead of the brokers'" in finding.evidence
        patient.treat(finding)
        patient.await_health("worker.clock")


@pytest.mark.long  # in short, the finding, in tests/unit/doctor
def test_a_worker_moves_to_a_larger_disk(stack: Stack, tmp_path: Path) -> None:
    patient, small, larger = patient_of(stack), tmp_path / "small", tmp_path / "larger"
    small.mkdir()
    patient.await_health()
    mounts = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=64m tmpfs {small} && exec "$0" "$@"']
    if subprocess.run([*mounts, "true"]).returncode:
        pytest.skip("nobody may mount a small disk here")
    second = stack.workers[1]
    usual, environment = second.command, {"ONEFOLD_INSTANCE": "3", "ONEFOLD_HTTP_PORT": str(free_port())}
    second.stop()
    second.command = [*mounts, *usual]
    second.change(data_dir=small)
    second.start()
    finding = patient.await_finding("worker.disk")
    assert "of 64.0 MiB are free" in finding.evidence
    with pytest.raises(AssertionError, match=r"LARGER: a folder on a disk with 2\.0 GiB free"):
        patient.treat(finding)
    with going(finding.cure, patient.environment | environment | {"LARGER": str(larger)}, tmp_path / "worker.log"):
        eventually(lambda: not second.running, deadline_s=MENDED_S)
        eventually(lambda: [*larger.glob("accounts-3/*")], deadline_s=MENDED_S)
        patient.await_health()
    second.command = usual
    second.change(data_dir=stack.settings.data_dir)
    second.start()


@contextmanager
def as_command(worker: Worker, module: list[str]) -> Iterator[Worker]:
    """Started anew with this module, and its arguments, in place of Faust's; then as it was."""
    usual = worker.command
    python, _, _, *rest = usual
    worker.stop()
    worker.command = [python, "-m", *module, *rest]
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
        worker.command = usual
        worker.start()
