"""What `watch` draws is what the page is sent."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from shared.console.picture import Declared, Picture, ServicePartition, Shown, Source
from shared.console.terminal import Terminal, drawn
from shared.http.cluster import Member, Standby
from shared.stories.tail import Newest

A, B, C = "http://a:1", "http://b:1", "http://c:1"
SERVICE = Declared(
    name="accounts", group="accounts", version=1, partitions=5, reads=("a.x", "a.dead.v1"), sends=("a.y",)
)
HEALTHY: dict[str, object] = {"findings": [], "unseen": []}


def member(url: str, instance: str, **more: bool) -> Member:
    return Member(url=url, instance=instance, **{"reachable": True, "ready": True, "idle": False, **more})


def place(
    partition: int, owner: str | None, restored: bool | None = True, to_restore: int = 0, lag: int = 0
) -> ServicePartition:
    return ServicePartition(
        partition=partition,
        owner=owner,
        restored=restored,
        to_restore=to_restore,
        left_s=2.0 if to_restore else None,
        lag_records=None if restored is None else lag,
        lag_seconds=None,
        standbys=[Standby(url=B, lag_records=0, lag_seconds=None)] if owner == A else [],
    )


def accounts(*places: ServicePartition, lag: int = 1_234) -> Shown:
    return Shown(
        declared=SERVICE,
        members=[member(B, "2", ready=False), member(A, "1"), member(C, "3", reachable=False, ready=False)],
        places=places,
        sources=[Source(topic="a.x", lag_records=lag, lag_seconds=5.0, offsets_per_s=7.5)],
        handled_per_s=1_500.0,
        parked=2,
    )


def shown(picture: Picture, trend: tuple[int, ...] = (), width: int = 200) -> list[str]:
    """As lines of a terminal, a wide one if no test says otherwise."""
    console = Console(file=io.StringIO(), width=width)
    console.print(drawn(picture, {"accounts": trend}))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def picture(*services: Shown, doctor: dict[str, object] | None = None) -> Picture:
    return Picture(at=1.0, services=services, newest=Newest(), doctor=HEALTHY if doctor is None else doctor)


def test_the_flow_has_each_topic_with_what_waits() -> None:
    lines = [line.split() for line in shown(picture(accounts(place(0, A))))]
    assert ["a.x", "accounts", "1,234", "7.5/s"] in lines
    assert ["a.y", "accounts", "0", "–"] in lines
    assert not any(line[:1] == ["a.dead.v1"] for line in lines)


def test_each_worker_has_a_mark_in_each_partition() -> None:
    places = (place(0, A), place(1, A, lag=3), place(2, B, False, 40), place(3, C, None), place(4, None, None))
    lines = shown(picture(accounts(*places)), (0, 1, 2))
    rows = [line.split() for line in lines if "http://" in line]
    assert rows == [
        ["1", A, "ready", "●▲···", "3"],
        ["2", B, "not", "ready", "○○◐··", "0", "40,", "2.0", "s"],
        ["3", C, "silent", "···?·", "?"],
    ]
    assert "accounts  1,500/s handled  1,234+? waiting, 5.0 s ▁▅█  2 parked" in lines
    assert "nobody owns partitions 4" in lines


@pytest.mark.parametrize("width", [80, 60])
def test_no_partition_is_left_out_of_a_narrow_terminal(width: int) -> None:
    """Which one is late, or nobody's, is what one looks for."""
    url = "http://127.0.0.1:31234"
    places = [place(number, url, lag=number % 2) for number in range(32)]
    lines = shown(picture(Shown(declared=SERVICE, members=[member(url, "1")], places=places)), width=width)
    grid = "".join(lines[next(number for number, line in enumerate(lines) if line.startswith("worker")) :])
    assert (grid.count("●"), grid.count("▲"), grid.count("…")) == (16, 16, 0)


def test_a_service_that_nobody_answers_for_says_why() -> None:
    assert "accounts: nobody answers: it is gone" in shown(picture(Shown(declared=SERVICE, problem="it is gone")))


def test_findings_are_with_their_cures() -> None:
    found = {"severity": "urgent", "what": "it burns", "evidence": "smoke", "why": "heat", "cure": "water [red]"}
    lines = shown(picture(doctor={"findings": [found], "unseen": ["the cellar"]}))
    assert lines[-4:] == ["URGENT  it burns", "    found  smoke", "    cure   water [red]", "unseen  the cellar"]
    assert shown(picture())[-1] == "nothing is wrong"
    assert shown(picture(doctor={"problem": "no broker"}))[-1] == "the doctor can't look: no broker"


def test_no_name_moves_the_cursor() -> None:
    """Whoever names a member, or parks a record under its id, does not write what others read."""
    evil = Shown(declared=SERVICE, members=[member(A, "\x1b[2J1")], places=[place(0, A)])
    assert not any("\x1b" in line for line in shown(picture(evil)))


def test_a_terminal_shows_the_newest_picture_until_q() -> None:
    looks = 0

    async def look() -> bytes:
        nonlocal looks
        looks += 1
        return picture(accounts(place(0, A), lag=looks)).model_dump_json().encode()

    async def watch() -> None:
        app = Terminal(look)
        async with app.run_test(size=(160, 40)) as pilot:
            while looks < 2:
                await pilot.pause()
            await pilot.pause()
            assert "offsets/s" in app.export_screenshot()
            await pilot.press("q")
        assert not app.is_running

    asyncio.run(asyncio.wait_for(watch(), 60))
