"""One broker, one worker per service: started, inspected, used, scaled, killed and removed, in this order."""

from __future__ import annotations

import json
import math
import re
import subprocess

import httpx
import pytest
from confluent_kafka import Producer

from services.accounts.topology import ACCOUNTS, TOPOLOGY
from shared.kafka.producer import producer_config
from shared.runtime.checkout import found_services
from tests.compose.conftest import Projects, ports
from tests.compose.project import ROOT, Project, eventually, get

NAME = "onefold-test"
MEMORY_BYTES = 3 * 10**9
STOP_S = 20
SPARK_S = 1200.0
PURCHASES = 200
COURIER = {"PICKUPS_COURIER_URL": "http://127.0.0.1:9000", "PICKUPS_COURIER_SECRET": f"whsec_{'c2VjcmV0' * 4}"}
RECEIVER = """
from http.server import BaseHTTPRequestHandler as Base, HTTPServer as Server
def answer(call):
    call.rfile.read(int(call.headers["Content-Length"]))
    call.send_response(204)
    call.end_headers()
Server(("127.0.0.1", 9000), type("Courier", (Base,), {"do_POST": answer})).serve_forever()
"""
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "onefold.json"


@pytest.fixture(scope="module")
def system(project: Projects) -> Project:
    made = project(NAME, "docker-compose.yml", PARITY_EVERY_S="1", **COURIER)
    made.up()
    return made


def owners(system: Project) -> list[set[str]]:
    """The owners of partitions of accounts, as each healthy replica sees them."""
    replicas = [get(f"{each.url}/cluster") for each in system.containers("accounts") if each.state == "healthy"]
    return [set(replica["owners"]["accounts"].values()) for replica in replicas]


def urls(system: Project) -> set[str]:
    """The URLs that the replicas of accounts advertise."""
    return {f"http://{each.hostname}:8000" for each in system.containers("accounts")}


def put_row(row: bytes | None) -> None:
    """Writes to the changelog of accounts, under a key that no account has; None deletes the row."""
    producer = Producer(producer_config(f"127.0.0.1:{ports()['BROKER_PORT']}"))
    producer.produce(TOPOLOGY.changelog(ACCOUNTS).name, row, b"nobody")
    assert producer.flush(30) == 0


def pull(name: str) -> None:
    """Skips the test where the image that Compose names cannot be had."""
    (image,) = re.findall(rf"image: ({name}:\S+)", (ROOT / "docker-compose.yml").read_text())
    pulled = subprocess.run(["docker", "image", "inspect", image], capture_output=True).returncode == 0
    if not pulled and subprocess.run(["docker", "pull", "--quiet", image], capture_output=True).returncode:
        pytest.skip(f"{image} cannot be had here")


def empty_panels() -> set[str]:
    """The panels with a query that Prometheus answers with nothing or with no number."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return {panel["title"] for panel in panels for target in panel["targets"] if not numbers(target["expr"])}


def numbers(query: str) -> list[float]:
    """The numbers that Prometheus finds for a panel's query over all services."""
    url = f"http://127.0.0.1:{ports()['PROMETHEUS_PORT']}/api/v1/query"
    answer = httpx.get(url, params={"query": query.replace("$service", ".*")}).raise_for_status().json()
    values = (float(found["value"][1]) for found in answer["data"]["result"])
    return [value for value in values if not math.isnan(value)]


def test_up_ends_when_everything_is_healthy_and_the_topics_are_made(system: Project) -> None:
    states = {each.service: each.state for each in system.containers()}
    assert states == dict.fromkeys(["broker", *found_services()], "healthy") | {"topics": "exited"}
    assert "all topics are as declared" in system.run("logs", "topics")


def test_a_second_up_changes_nothing(system: Project) -> None:
    before = {each.id for each in system.containers()}
    system.up()
    assert {each.id for each in system.containers()} == before


def test_the_memory_limits_add_up_to_at_most_three_gigabytes(system: Project) -> None:
    limits = {name: int(each["mem_limit"]) for name, each in system.config()["services"].items()}
    assert sum(limits.values()) <= MEMORY_BYTES


def test_published_ports_listen_on_loopback_only(system: Project) -> None:
    assert {ip for each in system.containers() for ip in each.host_ips} == {"127.0.0.1"}


@pytest.mark.parametrize("service", found_services())
def test_a_worker_has_no_privileges_and_writes_only_in_its_store(system: Project, service: str) -> None:
    assert system.in_container(service, "id -u") == "10001"
    refused = "touch /app/x /usr/local/x /var/lib/onefold/x 2>/dev/null || echo refused"
    assert system.in_container(service, refused) == "refused"
    (worker,) = system.containers(service)
    assert f"{service}-{worker.hostname}" in system.in_container(service, "ls /var/lib/onefold/stores").split()
    assert worker.facts["HostConfig"]["CapDrop"] == ["ALL"]


def test_there_is_no_compiler_in_the_image(system: Project) -> None:
    assert system.in_container("accounts", "command -v cc gcc make; echo none") == "none"


def test_prod_refuses_to_start_on_one_plaintext_broker(system: Project) -> None:
    said = system.in_container("accounts", "ONEFOLD_ENV=prod entrypoint worker accounts 2>&1; echo $?").splitlines()
    assert "ONEFOLD_BOOTSTRAP=broker:9092 is plaintext off this host: prod needs ONEFOLD_KAFKA_USER" in said
    assert "ONEFOLD_REPLICATION=1 is too few: prod needs 3 copies" in said
    assert said[-1] == "1"


def test_every_purchase_is_confirmed_and_every_balance_right(system: Project) -> None:
    assert system.demo(PURCHASES).startswith("verdict: ok")


def test_spark_computes_the_same_tables_from_the_events(system: Project) -> None:
    told = system.run("run", "--rm", "spark", "parity", deadline_s=SPARK_S).splitlines()[-1]
    assert told.startswith("Spark and the live tables agree: ")


def test_parity_is_healthy_while_the_last_run_agreed(system: Project) -> None:
    def state() -> str:
        return system.containers("parity")[0].state

    system.up("parity")
    put_row(b"a row that no event made")
    eventually(state, lambda now: now == "unhealthy", SPARK_S)
    put_row(None)
    system.run("--profile", "spark", "rm", "--stop", "--force", "parity", "spark-master", "spark-worker")


def test_every_panel_of_the_dashboard_finds_data(system: Project) -> None:
    pull("prom/prometheus")
    system.up("prometheus")
    assert system.demo(PURCHASES).startswith("verdict: ok")
    eventually(empty_panels, lambda empty: empty == {"Standbys behind"})  # no service has standbys here
    system.run("--profile", "obs", "rm", "--stop", "--force", "prometheus")


def test_the_database_of_the_sinks_has_every_account(system: Project) -> None:
    def compared() -> str:
        return system.in_container("accounts-sinks", "entrypoint sink parity accounts")

    pull("postgres")
    system.up("accounts-sinks")
    eventually(compared, lambda said: "rows are what it makes of" in said)
    owed = "SELECT sum(balance_cents) > 0 FROM accounts"
    assert system.in_container("postgres", f"psql -qtA -U postgres -c '{owed}'") == "t"
    system.run("--profile", "sinks", "rm", "--stop", "--force", "accounts-sinks", "postgres")


def test_a_runner_calls_the_courier_for_what_had_waited_for_it(system: Project) -> None:
    def waiting() -> object:
        return get(f"{pickups.url}/pickups?phase=pending")["items"]

    [pickups] = system.containers("pickups")
    assert waiting() != []
    system.up("pickups-runner")
    system.in_container("pickups-runner", f"python -c '{RECEIVER}' > /dev/null 2>&1 &")
    eventually(waiting, lambda found: found == [])
    assert get(f"{pickups.url}/pickups?phase=done")["items"] != []
    system.run("--profile", "effects", "rm", "--stop", "--force", "pickups-runner")


def test_three_replicas_share_the_partitions_and_each_answers_for_all(system: Project) -> None:
    system.up("--scale", "accounts=3", "--no-recreate")
    assert len(urls(system)) == 3
    eventually(lambda: owners(system), lambda seen: seen == [urls(system)] * 3)
    accounts = {get(f"{each.url}/accounts/00001")["balance_cents"] for each in system.containers("accounts")}
    assert len(accounts) == 1
    assert system.demo(2 * PURCHASES).startswith("verdict: ok")


def test_a_killed_worker_is_started_again_under_its_name(system: Project) -> None:
    victim = system.containers("accounts")[1]
    system.in_container("accounts", "kill -s KILL -- -1", index=2)  # all but init, which ends with its child
    again = eventually(lambda: system.containers("accounts")[1], lambda now: now.facts["RestartCount"] == 1)
    assert (again.id, again.hostname) == (victim.id, victim.hostname)
    assert system.demo(3 * PURCHASES).startswith("verdict: ok")
    eventually(lambda: owners(system), lambda seen: seen == [urls(system)] * 3)


def test_the_other_replicas_take_over_from_a_lost_container(system: Project) -> None:
    lost = system.containers("accounts")[2]
    subprocess.run(["docker", "rm", "--force", lost.id], check=True, capture_output=True)
    assert system.demo(4 * PURCHASES).startswith("verdict: ok")
    eventually(lambda: owners(system), lambda seen: seen == [urls(system)] * 2)


def test_a_stopped_replica_leaves_its_group_within_the_stop_time(system: Project) -> None:
    leaver = system.containers("accounts")[1]
    subprocess.run(["docker", "stop", "--time", str(STOP_S), leaver.id], check=True, capture_output=True)
    (stopped,) = [each for each in system.containers("accounts") if each.id == leaver.id]
    assert stopped.exit_code == 0  # then Docker would have killed it, which is 137
    system.up("--scale", "accounts=1", "--no-recreate")
    eventually(lambda: owners(system), lambda seen: seen == [urls(system)])
    assert system.demo(4 * PURCHASES).startswith("verdict: ok")


def test_a_stopped_system_comes_back_with_its_state(system: Project) -> None:
    system.run("stop")
    system.up()
    assert system.demo(4 * PURCHASES).startswith("verdict: ok")


def test_a_person_whom_a_container_of_its_own_forgets_is_forgotten_by_every_replica(system: Project) -> None:
    replicas = [each.url for each in system.containers("accounts")]
    httpx.post(f"{replicas[0]}/accounts/ann", json={"holder": "Ann"}, timeout=30).raise_for_status()

    def shown() -> list[str | None]:
        return [get(f"{url}/accounts/ann")["holder"] for url in replicas]

    eventually(shown, lambda names: names == ["Ann"] * len(replicas))
    system.run("run", "--rm", "accounts", "forget", "accounts", "ann")
    eventually(shown, lambda names: names == [None] * len(replicas))


def test_down_removes_every_container_volume_and_network(system: Project) -> None:
    system.run("--profile", "*", "down", "--volumes")
    for kind in ("container", "volume", "network"):
        listed = ["docker", kind, "ls", "--quiet", "--filter", f"label=com.docker.compose.project={NAME}"]
        assert subprocess.run(listed, check=True, capture_output=True, text=True).stdout == ""
