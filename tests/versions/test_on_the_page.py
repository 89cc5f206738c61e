"""Two versions of a view on the page: who looks sees which one answers, and swaps them with who and why."""

from __future__ import annotations

import getpass
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import uvicorn

from shared.console.app import Order, create_console
from shared.console.picture import Declared
from shared.console.watch import Watcher, tail_of
from shared.dev.console import Runs, versions_of
from shared.dev.console_process import url_at
from shared.dev.stack import Stack
from shared.dev.worker import Worker, free_port
from shared.engine.wiring import processors_of
from tests.console.browser import FOUND, Page, browser
from tests.versions.operator import Operator
from tests.versions.tallies import tallies, visits_to
from tests.versions.test_side_by_side import ODD, VISITORS, Visits, shown, visits
from tests.waiting import eventually

__all__ = ["visits"]  # a fixture

KIND = tallies, visits_to
pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


@contextmanager
def page_of(name: str, stack: Stack, workers: list[Worker], folder: Path) -> Iterator[Page]:
    """Of the checkout that declares version 2."""
    topology = tallies(2, name).topology

    def command(order: Order) -> list[str]:
        more = [str(order.version), "--yes"] if order.verb == "retire" else []
        more += [] if order.verb == "compare" else [f"--reason={order.reason}"]
        return [sys.executable, "-P", "-m", "tests.versions.typed", name, order.verb, name, *more]

    runs = Runs(folder, ["deploy", "compare", "switch", "rollback", "retire"], command)
    watcher = Watcher(
        [Declared.of(topology, processors_of(tallies(2, name)))],
        lambda: {name: [each.url for each in workers]},
        lambda: {"findings": []},
        tail_of([topology], stack.bootstrap),
        versions=partial(versions_of, [topology], stack.bootstrap),
        verbs=runs.verbs,
        runs=runs.seen,
    )
    port = free_port()
    config = uvicorn.Config(
        create_console(watcher, begin=runs.begin), port=port, log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    serving = threading.Thread(target=server.run)
    serving.start()
    try:
        eventually(lambda: server.started)
        with browser(folder / "chromium") as page:
            page.open(url_at(port))
            yield page
    finally:
        server.should_exit = True
        serving.join()


def run(page: Page, verb: str, why: str = "") -> str:
    """What the page says of it in the end."""
    eventually(lambda: page.run(f"document.querySelector('.versions [data-verb={verb}]:not([disabled])') !== null"))
    page.click(f".versions [data-verb={verb}]")
    if verb != "compare":
        eventually(lambda: page.text("dialog .mend button"))
        if why:
            page.fill("dialog [name=why]", why)
        page.click("dialog .mend button")
    return eventually(
        lambda: (page.text(".versions article > p code"), page.text(".versions [role=status]")),
        lambda told: told[0] == verb and told[1] != "runs",
    )[1]  # type: ignore[return-value]


def answers(page: Page) -> str | None:
    return page.run(  # type: ignore[no-any-return]
        "[...document.querySelectorAll('.versions li')].find(each => each.querySelector('.fine'))?.dataset.version"
    )


@pytest.mark.long  # in short, the page in tests/console/test_page, and its commands in test_side_by_side
@pytest.mark.skipif(FOUND is None, reason="no Chromium is on the PATH")
def test_versions_are_deployed_compared_swapped_and_retired_on_the_page(
    name: str,
    stack: Stack,
    operator: Operator,
    visits: Visits,
    worker: Callable[[int, str], Worker],
    tmp_path: Path,
) -> None:
    for visitor in [*VISITORS, ODD]:
        visits.write(visitor, 0 if visitor == ODD else 5)
    first = worker(1, "first")
    first.await_ready()
    with page_of(name, stack, workers := [first], tmp_path) as page:
        assert run(page, "deploy", "to compare") == "done"
        second = worker(2, "second")
        second.await_ready()
        workers.append(second)
        assert run(page, "compare") == "they DIFFER"
        assert f"totals: {len(VISITORS)} of {len(VISITORS) + 1} rows are equal" in (page.text(".versions pre") or "")
        eventually(lambda: answers(page), lambda version: version == "1")
        assert run(page, "switch", "counts right") == "done"
        eventually(lambda: answers(page), lambda version: version == "2")
        since = f"version 2 answers since {getpass.getuser()} decided so: counts right"
        eventually(lambda: page.text(".versions article"), lambda text: text and since in text)
        eventually(lambda: [shown(each, ODD) for each in (first, second)], lambda found: found == [(0, "2")] * 2)
        assert run(page, "rollback", "not yet") == "done"
        eventually(lambda: answers(page), lambda version: version == "1")
        assert run(page, "switch", "counts right") == "done"
        workers.remove(first)
        first.stop()
        assert run(page, "retire", "nobody goes back") == "done"
        eventually(lambda: page.texts(".versions li"), lambda rows: len(rows) == 1)
        assert page.complaints == []
