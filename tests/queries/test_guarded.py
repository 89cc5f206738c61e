"""Workers that require tokens: one worker trusts what another verified, and grants no more than that."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from shared.dev.issuer import DevIssuer
from shared.dev.stack import Stack
from tests.accounts.topology import TOPOLOGY
from tests.conftest import accounts_command, guarded_by
from tests.queries.cluster import PARTITIONS, answered, client, eventually, keys_in, path_of

pytestmark = [pytest.mark.broker, pytest.mark.anyio]


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> DevIssuer:
    issuer = DevIssuer(tmp_path_factory.mktemp("issuer"))
    issuer.key()
    return issuer


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, issuer: DevIssuer) -> Iterator[Stack]:
    settings = guarded_by(issuer, TOPOLOGY.service)
    root = tmp_path_factory.mktemp("guarded")
    with Stack(
        root, {TOPOLOGY.service: 2}, settings=settings, topologies=[TOPOLOGY], command=accounts_command
    ) as stack:
        yield stack


async def test_every_worker_admits_the_holder_of_an_account_and_nobody_else(guarded: Stack, issuer: DevIssuer) -> None:
    keys = [next(keys_in(partition, "own")) for partition in range(PARTITIONS)]
    rights = ["accounts:read", "accounts:write"]
    async with client() as http:
        for key in keys:
            own = {"Authorization": f"Bearer {issuer.token('accounts', rights, key)}"}
            other = {"Authorization": f"Bearer {issuer.token('accounts', rights, 'other')}"}
            once = own | {"Idempotency-Key": f"open-{key}"}
            opened = await answered(partial(http.post, guarded.urls("accounts")[0] + path_of(key), headers=once))
            assert opened.status_code == 201
            for url in guarded.urls("accounts"):
                assert (await answered(partial(http.get, url + path_of(key), headers=own))).status_code == 200
                assert (await http.get(url + path_of(key), headers=other)).status_code == 403
                assert (await http.post(url + path_of(key) + "/closure", headers=other)).status_code == 403
                assert (await http.get(url + path_of(key))).status_code == 401


async def test_lists_and_the_cluster_view_are_gathered_from_all_workers(guarded: Stack, issuer: DevIssuer) -> None:
    rights = ["accounts:read", "accounts:any", "operations:read"]
    headers = {"Authorization": f"Bearer {issuer.token('accounts', rights, 'clerk')}"}
    async with client() as http:
        for url in guarded.urls("accounts"):
            listed = await answered(partial(http.get, f"{url}/accounts", params={"complete": "true"}, headers=headers))
            assert listed.status_code == 200
            await eventually(
                partial(http.get, f"{url}/cluster", headers=headers),
                lambda a: [member["reachable"] for member in a.json()["members"]] == [True, True],
            )
            assert (await http.get(f"{url}/cluster")).status_code == 401
