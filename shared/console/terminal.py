"""The page's picture in a terminal: the flow, workers × partitions, and the doctor's findings."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from shared.console.feed import Feed
from shared.console.picture import Picture, ServicePartition, Shown, Source
from shared.console.watch import EVERY_S
from shared.http.cluster import Member

TREND = 40  # looks
LEGEND = "● owner  ▲ owner, and records wait  ◐ restoring  ? owner that does not answer  ○ standby  · nothing"
_BARS = "▁▂▃▄▅▆▇█"
_COLOURS = {"●": "green", "▲": "yellow", "◐": "cyan", "?": "red", "urgent": "bold red", "warning": "yellow"}

Trends = Mapping[str, Sequence[int]]
"""How many records have waited at the last looks, by service."""


class Terminal(App[None]):
    """look: makes a Picture as JSON, as for the page."""

    BINDINGS = [("q", "quit", "quit")]  # noqa: RUF012 - textual's own type
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, look: Callable[[], Awaitable[bytes]]) -> None:
        super().__init__()
        self._feed = Feed(look, EVERY_S)
        self._trends: defaultdict[str, deque[int]] = defaultdict(partial(deque, maxlen=TREND))

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(_plain("asking the workers …"))
        yield Footer()

    def on_mount(self) -> None:
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        async with aclosing(self._feed.frames()) as frames:
            async for frame in frames:
                picture = Picture.model_validate_json(frame)
                for each in picture.services:
                    if _is_known([each]):
                        self._trends[each.declared.name].append(_waiting(each.sources))
                self.query_one(Static).update(drawn(picture, self._trends))


def drawn(picture: Picture, trends: Trends) -> RenderableType:
    """All of it, from top to bottom."""
    grids = [part for each in picture.services for part in _grid(each, trends.get(each.declared.name, ()))]
    flow = (_plain(f"{_waits(picture.services)} waiting", "bold"), _flow(picture.services))
    return Group(*flow, Text(f"\n{LEGEND}\n"), *grids, *_findings(picture.doctor))


def _flow(services: Sequence[Shown]) -> Table:
    table = _table("topic", "sent by", "read by", "waiting", "offsets/s")
    topics = {topic for each in services for topic in (*each.declared.reads, *each.declared.sends)}
    for topic in sorted(topic for topic in topics if ".dead." not in topic):
        sources = [source for each in services for source in each.sources if source.topic == topic]
        senders = [each.declared.name for each in services if topic in each.declared.sends]
        readers = [each.declared.name for each in services if topic in each.declared.reads]
        paces = [each.offsets_per_s for each in sources if each.offsets_per_s is not None]
        row = (topic, ", ".join(senders), ", ".join(readers), f"{_waiting(sources):,}", _pace(max(paces, default=None)))
        table.add_row(*map(_plain, row))
    return table


def _grid(service: Shown, trend: Sequence[int]) -> Iterator[RenderableType]:
    name = service.declared.name
    if service.problem is not None:
        yield _plain(f"{name}: nobody answers: {service.problem}\n", "red")
        return
    longest_s = max((each.lag_seconds for each in service.sources if each.lag_seconds is not None), default=None)
    parked = "?" if service.parked is None else f"{service.parked:,}"
    waiting = f"{_waits([service])} waiting{_for(longest_s)} {_bars(trend)}"
    title = f"{name}  {_pace(service.handled_per_s)} handled  {waiting}  {parked} parked"
    yield _plain(title, "bold")
    table = _table("worker", "at", "", "partitions", "waiting", "to restore")
    for member in sorted(service.members, key=lambda each: (each.instance or "", each.url)):
        table.add_row(*_row(member, service.places))
    yield table
    if lost := [str(each.partition) for each in service.places if each.owner is None]:
        yield _plain(f"nobody owns partitions {' '.join(lost)}", "red")
    yield Text()


def _row(member: Member, places: Sequence[ServicePartition]) -> Iterator[Text]:
    owned = [each for each in places if each.owner == member.url]
    cells = Text()
    for place in places:
        cell = _cell(place, member.url)
        cells.append(cell, _COLOURS.get(cell, ""))
    waiting = [each.lag_records for each in owned]
    to_restore = sum(each.to_restore or 0 for each in owned)
    left_s = max((each.left_s for each in owned if each.left_s is not None), default=None)
    yield _plain(member.instance or "?")
    yield _plain(member.url)
    yield _plain(member.state, "" if member.ready else "red")
    yield cells
    yield _plain("?" if None in waiting else f"{sum(each or 0 for each in waiting):,}")
    yield _plain(f"{to_restore:,}{_for(left_s)}" if to_restore else "")


def _cell(place: ServicePartition, url: str) -> str:
    if place.owner != url:
        return "○" if any(each.url == url for each in place.standbys) else "·"
    if place.restored is None:
        return "?"
    if not place.restored:
        return "◐"
    return "▲" if place.lag_records else "●"


def _findings(doctor: Mapping[str, Any] | None) -> Iterator[Text]:
    if doctor is None:
        yield _plain("the doctor is looking …")
        return
    if "problem" in doctor:
        yield _plain(f"the doctor can't look: {doctor['problem']}", "red")
    for each in doctor.get("findings", ()):
        yield _plain(f"{each['severity'].upper()}  {each['what']}", _COLOURS.get(each["severity"], ""))
        yield _plain(f"    found  {each['evidence']}")
        yield _plain(f"    cure   {each['cure']}")
    for text in doctor.get("unseen", ()):
        yield _plain(f"unseen  {text}")
    if not any(doctor.get(part) for part in ("findings", "unseen", "problem")):
        yield _plain("nothing is wrong", "green")


def _table(*columns: str) -> Table:
    """What a narrow terminal has no room for goes on in the next line: a mark left out may be the one that matters."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for each in columns:
        is_figure = each in ("waiting", "offsets/s")
        table.add_column(each, header_style="dim", justify="right" if is_figure else "left", overflow="fold")
    return table


def _plain(text: str, style: str = "") -> Text:
    """Neither markup nor what moves a terminal's cursor: strangers choose ids, and members their names."""
    return Text(
        "".join(each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in text), style
    )


def _is_known(services: Iterable[Shown]) -> bool:
    """Whether every owner tells what waits in its partitions."""
    return not any(each.problem or any(place.lag_records is None for place in each.places) for each in services)


def _waiting(sources: Iterable[Source]) -> int:
    return sum(each.lag_records for each in sources)


def _waits(services: Sequence[Shown]) -> str:
    known = sum(_waiting(each.sources) for each in services)
    return f"{known:,}{'' if _is_known(services) else '+?'}"


def _pace(per_s: float | None) -> str:
    if per_s is None:
        return "–"
    return f"{per_s:.1f}/s" if 0 < per_s < 10 else f"{per_s:,.0f}/s"


def _for(time_s: float | None) -> str:
    return "" if time_s is None else f", {time_s:,.1f} s"


def _bars(trend: Sequence[int]) -> str:
    most = max(trend, default=0)
    return "".join(_BARS[round((len(_BARS) - 1) * each / most)] for each in trend) if most else ""
