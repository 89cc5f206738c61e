"""What operators and load balancers are told."""

from __future__ import annotations

import sys

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.http.api import create_api
from shared.runtime.positions import Place
from shared.testing.node import MemoryNode
from shared.topology.topics import Topology
from tests.unit.http.services import client_of

pytestmark = pytest.mark.anyio


async def samples(http: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    """Every sample of /metrics, by its name and the values of its labels, in alphabetical order of the labels."""
    text = (await http.get("/metrics")).text
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_requests_are_counted_by_route_never_by_path(http: httpx.AsyncClient) -> None:
    for account_id in ("a", "b", "c"):
        await http.post(f"/accounts/{account_id}")
    await http.get("/accounts/a")
    await http.get("/accounts/nobody")
    await http.get("/wherever/it/goes")
    await http.request("BREW", "/accounts/a")
    found = await samples(http)
    assert found["onefold_http_requests_total", "POST", "/accounts/{account_id}", "201"] == 3
    assert found["onefold_http_requests_total", "GET", "/accounts/{account_id}", "200"] == 1
    assert found["onefold_http_requests_total", "GET", "/accounts/{account_id}", "404"] == 1
    assert found["onefold_http_requests_total", "GET", "none", "404"] == 1
    assert (
        found["onefold_http_requests_total", "GET", "/accounts/{account_id}", "500"] == 0
    )  # so that the first is a rise
    assert (("process_resident_memory_bytes",) in found) == (sys.platform == "linux")
    assert ("python_gc_collections_total", "2") in found
    assert found["onefold_http_request_seconds_count", "POST", "/accounts/{account_id}"] == 3
    assert ("onefold_http_requests_total", "other", "/accounts/{account_id}", "405") in found


async def test_the_engine_and_every_partition_are_measured(http: httpx.AsyncClient, node: MemoryNode) -> None:
    await http.post("/accounts/a")
    found = await samples(http)
    assert found["onefold_records_handled_total",] == 2  # the command, and its event into the history index
    assert found["onefold_ready",] == 1
    for partition in map(str, range(node.topology.partitions)):
        assert found["onefold_source_lag_records", partition, "accounts.commands.v1"] == 0
        assert found["onefold_source_lag_seconds", partition, "accounts.commands.v1"] == 0
        assert found["onefold_table_restored", partition, "active", "accounts"] == 1


async def test_a_partition_has_its_own_readiness(http: httpx.AsyncClient, node: MemoryNode) -> None:
    node.refuses = {3}
    assert (await http.get("/readyz")).status_code == 503
    assert (await http.get("/readyz", params={"partition": 3})).status_code == 503
    assert (await http.get("/readyz", params={"partition": 2})).status_code == 200
    assert (await http.get("/readyz", params={"partition": 8})).status_code == 404
    by_key = {key: (await http.get("/readyz", params={"key": key})).status_code for key in map(str, range(50))}
    assert by_key == {key: 503 if node.partition(key.encode()) == 3 else 200 for key in by_key}


async def test_a_parameter_that_readiness_does_not_take_is_refused(http: httpx.AsyncClient) -> None:
    """Misspelt, `partition` would tell about this worker."""
    refused = await http.get("/readyz", params={"partion": 3})
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["field"]) == (422, "query.partion")


async def test_a_key_in_another_partition_than_the_named_one_is_not_found(
    http: httpx.AsyncClient, node: MemoryNode
) -> None:
    holder = node.partition(b"ann")
    assert (await http.get("/readyz", params={"key": "ann", "partition": holder})).status_code == 200
    other = await http.get("/readyz", params={"key": "ann", "partition": (holder + 1) % 8})
    assert (other.status_code, other.json()["code"]) == (404, "partition.unknown")
    assert other.json()["detail"] == f"the key is in partition {holder}; fix: leave out partition"


@pytest.mark.parametrize(
    "asked",
    [
        "GET /healthz",
        "GET /metrics",
        "GET /cluster",
        "GET /dead-letters/accounts%2F0%2Fa",
        "GET /stories/c",
        "POST /dead-letters/accounts%2F0%2Fa/retry",
        "POST /accounts/ann",
        "GET /accounts/ann/commands/c",
    ],
)
async def test_a_route_without_parameters_refuses_any(http: httpx.AsyncClient, node: MemoryNode, asked: str) -> None:
    """Such as `?wait=0`, which a command asks for in a header."""
    method, path = asked.split()
    refused = await http.request(method, f"{path}?wait=0&x")
    assert (refused.status_code, refused.json()["detail"]) == (422, "query.wait: Extra inputs are not permitted")
    assert [error["field"] for error in refused.json()["errors"]] == ["query.wait", "query.x"]
    assert not any(node.logs.values())


async def test_no_event_is_left_out_of_a_history(http: httpx.AsyncClient, node: MemoryNode) -> None:
    refused = await http.post("/dead-letters/chapters%2F0%2Fa/discard", json={"offset": 7, "reason": "it fails"})
    assert (refused.status_code, refused.json()["code"]) == (409, "history.whole")
    assert not node.logs[Place(node.topology.parking.name, 0)]
    taken = await http.post("/dead-letters/accounts%2F0%2Fa/discard", json={"offset": 7, "reason": "it fails"})
    assert taken.status_code == 202
    assert node.logs[Place(node.topology.parking.name, 0)]


@pytest.mark.parametrize("letter_id", ["accounts", "accounts%2Fa", "accounts%2F8%2Fa"])
async def test_an_id_that_names_no_partition_is_unknown(
    http: httpx.AsyncClient, node: MemoryNode, letter_id: str
) -> None:
    path = f"/dead-letters/{letter_id}"
    assert (await http.get(path)).status_code == 404
    assert (await http.post(f"{path}/retry")).status_code == 404
    assert (await http.post(f"{path}/discard", json={"offset": 7, "reason": "it fails"})).status_code == 404
    assert not any(node.logs[Place(node.topology.parking.name, number)] for number in range(node.topology.partitions))


async def test_the_partitions_of_a_service_without_tables_have_owners_and_a_readiness() -> None:
    """Its policies and timers need one, too."""
    node = MemoryNode(Topology("coupons", ()), [])
    node.refuses = {3}
    async with client_of(create_api(node, lambda *_: ())) as http:
        ready = [(await http.get("/readyz", params={"partition": number})).status_code for number in (2, 3)]
        tables = (await http.get("/cluster")).json()["tables"]
    assert ready == [200, 503]
    assert [part["active"] for part in tables["parked"]] == [node.settings.url] * 8


async def test_the_cluster_of_one_is_whole(http: httpx.AsyncClient) -> None:
    found = (await http.get("/cluster")).json()
    assert [member["reachable"] for member in found["members"]] == [True]
    assert [part["partition"] for part in found["tables"]["accounts"]] == list(range(8))
    assert {part["active"] for part in found["tables"]["accounts"]} == {found["url"]}
