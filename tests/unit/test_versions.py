"""Routes as records make them, and the rows of two versions at the same positions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import Request
from fastapi.exceptions import RequestValidationError

from shared.dev.versions import SHOWN, compared
from shared.domain.errors import NotReady
from shared.domain.row import Row, RowCodec
from shared.http.node import Node
from shared.http.versions import other_version, owner_in
from shared.operations.versions import Compared, Differing, RowsAt, Versions, VersionsRefused, compare_rows
from shared.runtime.routes import Active, Routes, owner_key
from shared.runtime.settings import Settings
from shared.topology import Service, Topology
from tests.accounts.service import SERVICE as DECIDES
from tests.versions.tallies import tallies

ENCODE = RowCodec[dict[str, int]](dict[str, int]).encode
HERE = "http://127.0.0.1:8001"


def routes(*, active: Active | None = None, owners: dict[tuple[int, int], str] | None = None) -> Routes:
    found = Routes()
    found.read = True
    if active is not None:
        found.apply(*active.record)
    for place, url in (owners or {}).items():
        found.apply(owner_key(*place), url.encode())
    return found


def asked(node: Any, version: str | None = None, *, hop: bool = False) -> int | None:
    headers = [] if version is None else [(b"onefold-version", version.encode())]
    scope = {"type": "http", "headers": headers, "onefold.peer": object() if hop else None}
    return other_version(Request(scope), cast(Node, node))


def node(found: Routes | None, version: int = 1) -> Any:
    return SimpleNamespace(topology=tallies(version).topology, routes=found)


def test_only_a_service_of_views_has_routes() -> None:
    assert tallies(2).topology.routes == tallies(1).topology.routes
    assert tallies(1).topology.routes in tallies(1).topology.all_topics()
    assert DECIDES.topology.routes is None
    assert Topology("senders", topics=()).routes is None


def test_each_worker_answers_by_itself_until_a_version_is_active() -> None:
    assert asked(node(None)) is None
    assert asked(node(routes(), version=2)) is None


def test_the_active_version_answers_and_else_the_one_that_is_named() -> None:
    found = routes(active=Active(version=2), owners={(1, 0): HERE, (2, 0): HERE})
    assert [asked(node(found, own)) for own in (1, 2)] == [2, None]
    assert [asked(node(found, own), "1") for own in (1, 2)] == [None, 1]
    assert asked(node(found), hop=True) is None
    with pytest.raises(RequestValidationError, match="workers of version 1, 2"):
        asked(node(found), "3")
    with pytest.raises(RequestValidationError):
        asked(node(None), "2")


def test_nobody_answers_before_the_routes_were_read() -> None:
    with pytest.raises(NotReady, match="not known yet"):
        asked(node(Routes()))


def test_an_owner_is_who_said_so_last() -> None:
    found = routes(owners={(2, 0): "http://gone", (2, 1): HERE})
    found.apply(owner_key(2, 0), HERE.encode())
    assert found.owners(2) == {0: HERE, 1: HERE}
    found.apply(owner_key(2, 1), None)
    assert owner_in(found, 2, 0) == HERE
    with pytest.raises(NotReady, match="no worker of it has said that it owns partition 1"):
        owner_in(found, 2, 1)


def test_a_record_that_cant_be_read_changes_nothing() -> None:
    found = routes(active=Active(version=2))
    for key, value in ((b"active", b"{"), (b"owner/x/1", b"url"), (b"later", b"1"), (None, None)):
        found.apply(key, value)
    assert found.active == Active(version=2)
    assert found.versions == set()


def test_a_stream_is_told_when_another_version_answers() -> None:
    async def follow() -> None:
        moved = asyncio.ensure_future(found.moved(1))
        for active in (Active(version=1, reason="again"), Active(version=2, former=1)):
            await asyncio.sleep(0)
            assert not moved.done()
            found.apply(*active.record)
        await moved

    found = routes(active=Active(version=1))
    asyncio.run(follow())


def rows(*records: tuple[str, int | None, int], until: int, name: str = "totals") -> RowsAt:
    """Records of a changelog: key, state and offset."""
    found = RowsAt(name, {name: until})
    for key, state, offset in records:
        value = None if state is None else ENCODE(Row(1, {"visits": state}, {}, offset))
        found.add(key.encode(), value)
    return found


def test_rows_are_compared_as_they_were_at_the_fence() -> None:
    found = Compared("totals")
    one = rows(("a", 1, 0), ("b", 1, 1), ("b", None, 2), ("c", 1, 3), ("a", 2, 5), until=5)
    other = rows(("a", 1, 0), ("c", 4, 3), ("d", 1, 4), until=5)
    compare_rows(found, 3, one, other)
    assert (found.equal, found.moved, found.rows) == (1, 0, 3)
    assert [(each.key, dict(each.fields)) for each in found.differ] == [
        (b"c", {"visits": (1, 4)}),
        (b"d", {"visits": (None, 1)}),
    ]
    assert found.by_field == {"visits": 2}


def test_a_row_whose_state_at_the_fence_was_compacted_away_is_not_called_different() -> None:
    found = Compared("totals")
    compare_rows(found, 0, rows(("a", 2, 7), until=5), rows(("a", 1, 3), until=5))
    assert (found.rows, found.moved) == (0, 1)


def test_a_joined_row_counts_while_all_that_it_is_made_of_does() -> None:
    found = RowsAt("both", {"one": 5, "two": 3})
    for key, two in (("a", 2), ("b", 3)):
        found.add(key.encode(), ENCODE(Row(1, {"n": 1}, {}, 4, {"one": [1, 4], "two": [1, two]})))
    assert ({*found.states}, found.later) == ({b"a"}, {b"b"})


def test_what_differs_is_shown_by_row_and_counted_by_field() -> None:
    differ = [Differing(0, f"k{n}".encode(), b'{"a":1,"b":1}', b'{"a":2,"b":1}') for n in range(SHOWN + 1)]
    lines = list(compared(Compared("totals", equal=7, moved=2, differ=differ)))
    assert lines[0] == "table     totals: 7 of 28 rows are equal; 2 more changed meanwhile"
    assert lines[1:3] == ["field     a differs in 21", "row       k0 in partition 0: a 1 → 2"]
    assert lines[-1] == "          and 1 more"
    (_, _, alone) = compared(Compared("totals", differ=[Differing(0, b"k", None, b'{"a":1}')]))
    assert alone == "row       k in partition 0: only the second has it: a null → 1"


@pytest.mark.parametrize(
    ("service", "what"),
    [
        (replace(DECIDES, topology=DECIDES.topology.next_version), "it decides, and two versions"),
        (Service(Topology("senders", topics=(), version=2)), "it has no view, and two versions"),
    ],
)
def test_what_would_do_it_twice_is_refused(service: Service, what: str) -> None:
    versions = Versions(service, Settings(bootstrap="127.0.0.1:1"))
    for steps in (versions.deploy(), versions.switch("me", "")):
        with pytest.raises(VersionsRefused, match=what):
            list(steps)
