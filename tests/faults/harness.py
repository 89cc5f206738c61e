"""A scenario: load and readers around a fault, and the verdict on the outcome."""

from __future__ import annotations

import http.client
import json
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from confluent_kafka import KafkaException

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from shared.kafka.offsets import Offsets, OffsetsUnknown
from shared.runtime.positions import Place
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS, TOPOLOGY
from tests.faults.load import HttpLoad, Load, new_names
from tests.faults.log import Follower, compacting, read_all, with_open_transactions
from tests.faults.run import SEEN, is_short, listed
from tests.faults.transfers import Books, Transfers, wrong_totals
from tests.faults.truth import Truth, fact_in
from tests.faults.verdict import (
    CHANGELOG,
    HISTORY_INDEX,
    OUTPUTS,
    changed_since,
    first_difference,
    last,
    lost,
    truth_of,
    uncompacted,
    wrong_answers,
    wrong_entries,
    wrong_log,
)
from tests.waiting import Deadline, Late

DEADLINE_S = 120.0
TICK_S = 0.05
TRIES = 10
TRANSFERRING, LEAST_TRANSFERS = 100, 100  # accounts; completed transfers
SHOWN = 10
FOLLOWED = (*OUTPUTS, HISTORY_INDEX)
TOPICS = [topic.name for topic in TOPOLOGY.all_topics()]


class Tier(NamedTuple):
    """The load of a scenario, and how much is asked at its end.

    least: commands in each partition. pasts, by_key: accounts whose past, and whose row by its key, is asked for.
    """

    accounts: int
    per_s: int
    least: int
    pasts: int
    by_key: int


SHORT, LONG = Tier(500, 300, 150, 10, 100), Tier(4_000, 1_000, 1_000, 50, 500)
"""Most of a scenario's time is spent on the load and on its verdict."""


class Void(AssertionError):
    """The scenario proved nothing: there was too little load, or the fault was not seen to happen."""


def observe(happened: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Waits until it has happened. Raises Void when it does not."""
    try:
        await_in_time(happened, what, deadline_s)
    except Late as late:
        raise Void(f"not seen: {late}") from None


class Violated(AssertionError):
    """A promise was broken. The message shows the first of the violations."""

    def __init__(self, violations: Sequence[str], seed: int, logs: Path) -> None:
        head = f"{len(violations)} violations, FAULTS_SEED={seed}, logs: {logs}"
        super().__init__("\n".join([head, *violations[:SHOWN]]))
        self.violations = violations


def await_in_time(holds: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Waits until it is so. Raises Late when it is not."""
    deadline = Deadline(deadline_s)
    while not holds():
        deadline.check(what)
        time.sleep(TICK_S)


class Scenario:
    """Starts load and readers on a healthy stack; at the end waits until it is healthy again, and judges."""

    def __init__(
        self,
        stack: Stack,
        seed: int,
        *,
        per_s: int | None = None,
        least_commands: int = 0,
        least_events: int = 0,
    ) -> None:
        """least_commands, least_events: the load goes on until so many are acknowledged and seen.

        In each partition there are at least as many as the tier has, too.
        """
        self.stack = stack
        self.seed = seed
        self._least_commands = least_commands
        self._least_events = least_events
        self._tier = SHORT if is_short(seed) else LONG
        self._compacts = False
        self.random = random.Random(seed)
        self._seen = Counter(scenarios=1)
        self._offsets = Offsets(stack.bootstrap)
        self._starts = self._patiently(self._offsets.ends, _partitions(COMMANDS.name, *FOLLOWED))
        self._follower = Follower(stack.bootstrap, self._only(FOLLOWED))
        self._transfers = Transfers(new_names("t", TRANSFERRING), self._follower.arrived)
        self._load = Load(stack.bootstrap, seed, self._tier.accounts, per_s or self._tier.per_s, self._transfers)
        self._http = HttpLoad(lambda: [worker.url for worker in self.workers], seed)

    def __enter__(self) -> Self:
        print(f"FAULTS_SEED={self.seed}; logs: {self.stack.logs}")  # noqa: T201
        for thread in (self._follower, self._load, self._http):
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._judge()
        finally:
            self.end_load()
            self._follower.end()

    @property
    def workers(self) -> list[Worker]:
        return self.stack.workers_of(TOPOLOGY.service)

    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if runs(worker)]

    @property
    def decided(self) -> int:
        """Records that readers of the outputs have seen so far."""
        return self._follower.count(OUTPUTS)

    @property
    def acknowledged(self) -> int:
        """Commands that a broker has acknowledged so far, or a worker with 201."""
        return len(self._load.acknowledged) + sum(answer.status == 201 for answer in self._http.answers)

    def try_more(self, commands: int, requests: int) -> None:
        """Returns when so many more were sent, whether or not there was an answer."""
        sent, tries = self._load.sent + commands, self._http.tries + requests
        observe(lambda: self._load.sent >= sent, f"{commands} more commands were sent")
        observe(lambda: self._http.tries >= tries, f"{requests} more requests were tried")

    def kill(self, worker: Worker) -> None:
        worker.kill()
        self._seen["kills"] += 1

    def await_killed(self, worker: Worker) -> None:
        """For a worker that a failpoint kills, as `await_frozen` is for one that it freezes."""
        observe(lambda: worker.exit_code == -signal.SIGKILL, f"{worker.name} was killed")
        self._seen["kills"] += 1

    def freeze(self, worker: Worker) -> None:
        worker.pause()
        self.await_frozen(worker)

    def await_frozen(self, worker: Worker) -> None:
        observe(lambda: is_frozen(worker), f"{worker.name} is frozen")
        self._seen["freezes"] += 1

    def freeze_while_it_restores(self, worker: Worker) -> Log:
        """Starts it without its stores, and freezes it before it has restored any partition of accounts.

        Returns its log since its start.
        """
        for _ in range(TRIES):
            worker.stop()
            shutil.rmtree(self.stack.settings.data_dir / worker.name)
            log = Log(worker)
            worker.spawn()
            observe(partial(log.tells, "took over"), f"{worker.name} restores")
            self.freeze(worker)
            if not log.tells("restored", CHANGELOG):
                return log
            worker.resume()
            worker.await_ready()
        raise Void(f"{worker.name} was never frozen before it had restored something")

    def load_for(self, records: int) -> None:
        """Returns after so many more output records."""
        goal = self.decided + records
        observe(lambda: self.decided >= goal, f"{records} more records at the outputs")

    def recover_for(self, records: int) -> None:
        """The same; in addition, every running worker must be ready at the end."""
        self.load_for(records)
        observe(lambda: all(worker.is_ready() for worker in self.running()), "every running worker is ready")

    @contextmanager
    def compaction(self) -> Iterator[None]:
        """Inside the block the changelog is compacted all the time; otherwise, each of its records has to stay."""
        self._compacts = True
        with compacting(self.stack.bootstrap, CHANGELOG):
            yield

    def compacted(self, partitions: Iterable[int] = range(TOPOLOGY.partitions)) -> int:
        """How many records of these partitions of the changelog readers have seen, and are gone."""
        places = [Place(CHANGELOG, partition) for partition in partitions]
        seen = {place: list(self._follower.records[place]) for place in places}
        left = read_all(self.stack.bootstrap, {place: self._starts[place] for place in places})
        return sum(len(set(seen[place]) - set(left[place])) for place in places)

    def await_enough(self) -> None:
        """Returns once there was enough load for a verdict. Raises Void if there never is, as once it has ended."""
        observe(lambda: len(self._load.acknowledged) >= self._least_commands, f"{self._least_commands} commands")
        observe(lambda: self._least_in_a_partition() >= self._tier.least, "enough commands in each partition")
        observe(lambda: self._follower.count([EVENTS.name]) >= self._least_events, f"{self._least_events} events")
        observe(lambda: self._transfers.credits >= LEAST_TRANSFERS, f"{LEAST_TRANSFERS} transfers")
        observe(lambda: self._http.answers and self._http.fresh, "an answer over HTTP, and a write that is read back")

    def end_load(self) -> None:
        self._load.end()
        self._http.end()

    def cluster(self, worker: Worker) -> dict[str, Any]:
        return dict(get(worker, "/cluster")[1])

    def owned(self, worker: Worker, asked: Worker | None = None) -> set[int]:
        """The partitions that `worker` owns according to `asked`, by default itself; none when that does not answer."""
        try:
            owners = self.cluster(asked or worker)["owners"][ACCOUNTS.name]
        except (OSError, http.client.HTTPException):
            return set()
        return {int(partition) for partition, url in owners.items() if url == worker.url}

    def await_decided(self) -> None:
        """Returns when every command sent so far is decided, its events are read and no transaction is open."""
        for topic in (COMMANDS.name, EVENTS.name):
            ends = self._patiently(self._offsets.ends, _partitions(topic))
            await_in_time(partial(self._are_handled, ends), f"{topic} is read to its end")
        everywhere, bootstrap = _partitions(*TOPICS), self.stack.bootstrap
        await_in_time(
            lambda: not self._patiently(with_open_transactions, bootstrap, everywhere), "no transaction is open"
        )

    def _are_handled(self, ends: Mapping[Place, int]) -> bool:
        committed = self._patiently(self._offsets.committed, TOPOLOGY.group, list(ends))
        return all((committed[place] or 0) >= end for place, end in ends.items())

    def _judge(self) -> None:
        self.await_enough()
        self.end_load()
        ended = [
            f"{worker.name} ended by itself with {worker.exit_code}" for worker in self.workers if has_ended(worker)
        ]
        for worker in self.running():
            worker.await_ready(DEADLINE_S)
        self.await_decided()
        inputs = read_all(self.stack.bootstrap, self._only([COMMANDS.name]))
        outputs = read_all(self.stack.bootstrap, self._only(FOLLOWED))
        observe(lambda: self._follower.has_seen(outputs), "the follower at the end of the log")
        if self._compacts:
            outputs = uncompacted(self._follower.records, outputs)
        truth, books = truth_of(inputs), Books()
        violations = [
            *ended,
            *self._load.failures,
            *self._http.unanswered,
            *self._http.strange,
            *self._http.stale,
            *lost(self._load.acknowledged, inputs),
            *changed_since(self._follower.records, outputs),
            *wrong_totals(books, self._follower.arrived, self._transfers.names),
            *wrong_log(truth, outputs),
            *wrong_entries(truth, outputs),
            *wrong_answers(truth, self._http.answers),
            *self._wrong_rows(truth),
            *self._wrong_pasts(truth),
        ]
        if violations:
            raise Violated(violations, self.seed, self.stack.logs)
        if not (truth.repeated and truth.dead and self._http.answers and self._http.fresh):
            raise Void(
                "no command was repeated, none was poisoned, nobody was answered over HTTP, or read a write back"
            )
        if books.completed < LEAST_TRANSFERS:
            raise Void(f"only {books.completed} transfers were completed")
        self._seen |= Counter(commands=truth.records, repeated=truth.repeated, bad=len(truth.dead))
        self._seen |= Counter(events=truth.facts, transfers=books.completed)
        self._seen |= Counter(answers=len(self._http.answers), fresh=self._http.fresh)
        SEEN.update(self._seen)
        print(f"{listed(self._seen)}: exact")  # noqa: T201

    def _least_in_a_partition(self) -> int:
        return min(self._load.counts[place] for place in _partitions(COMMANDS.name))

    def _wrong_rows(self, truth: Truth) -> Iterator[str]:
        """Asks every worker for the list of all rows, and for some by their keys."""
        rows = {name: last(rows) for name, rows in truth.rows.items()}
        expected = {
            name: None if row.phase in ("unopened", "greeted") else (row.phase, row.balance_cents, row.sequence)
            for name, row in rows.items()
        }
        some = self.random.sample(sorted(expected), min(self._tier.by_key, len(expected)))
        for worker in self.running():
            yield from _differences(f"the list of {worker.name}", _listed(worker), expected)
            with ThreadPoolExecutor(4) as pool:
                found = dict(zip(some, pool.map(partial(_seen_by_key, worker), some), strict=True))
            yield from _differences(worker.name, found, {name: expected[name] for name in some})

    def _wrong_pasts(self, truth: Truth) -> Iterator[str]:
        """Asks for the events of some accounts, one worker for one, another for the next: each takes a new consumer.

        Ends with the first that is wrong: one that never comes is asked for again for two minutes.
        """
        histories = {name: account.facts for name, account in truth.accounts.items() if account.facts}
        names = self.random.sample(sorted(histories), self._tier.pasts)
        for name, worker in zip(names, cycle(self.running()), strict=False):
            found = _past(worker, name)
            if found != histories[name]:
                yield f"the past of {name} shows {first_difference(found, histories[name])}"
                return

    def _only(self, topics: Iterable[str]) -> dict[Place, int]:
        return {place: start for place, start in self._starts.items() if place.topic in topics}

    def _patiently(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        deadline = Deadline(DEADLINE_S)
        while True:
            try:
                return ask(*arguments)
            except (KafkaException, OffsetsUnknown) as unknown:
                deadline.check(unknown)
                time.sleep(TICK_S)


class Log:
    """A worker's log from now on. words: must all be in one line."""

    def __init__(self, worker: Worker) -> None:
        self._file = worker.log
        self._start = self._file.stat().st_size

    def tells(self, *words: str) -> bool:
        return self.count(*words) > 0

    def count(self, *words: str) -> int:
        with self._file.open("rb") as log:
            log.seek(self._start)
            return sum(all(word.encode() in line for word in words) for line in log)

    def must_tell(self, *words: str) -> None:
        if not self.tells(*words):
            raise Void(f"{self._file} does not tell of {words}")


def runs(worker: Worker) -> bool:
    """Whether its process exists, even if frozen."""
    try:
        return worker.pid > 0 and worker.exit_code is None
    except ProcessLookupError:
        return False


def has_ended(worker: Worker) -> bool:
    """Whether it was neither stopped nor killed by the scenario, and yet runs no more."""
    return worker.exit_code is not None


def is_frozen(worker: Worker) -> bool:
    """Whether a signal has stopped its process. Linux only."""
    return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def get(worker: Worker, path: str) -> tuple[int, Any]:
    """(status, JSON) of the answer, asking again for as long as it is 503."""
    deadline = Deadline(DEADLINE_S)
    while True:
        connection = http.client.HTTPConnection(worker.url.removeprefix("http://"), timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 503 or deadline.left_s < 0:
            return answer.status, body
        time.sleep(TICK_S)


Seen = tuple[str, int, int] | None
"""Phase, balance in cents and sequence, as a worker shows them; None where it shows no account."""


def _seen_in(item: Mapping[str, Any]) -> Seen:
    return str(item.get("phase")), int(item.get("balance_cents", -1)), int(item.get("sequence", -1))


def _differences(who: str, found: Mapping[str, Seen], expected: Mapping[str, Seen]) -> Iterator[str]:
    for name, row in expected.items():
        if found.get(name) != row:
            yield f"{who} shows {found.get(name)} for {name} instead of {row}"


def _seen_by_key(worker: Worker, name: str) -> Seen:
    status, body = get(worker, f"/accounts/{name}")
    return None if status == 404 else _seen_in(body)


def _listed(worker: Worker) -> Mapping[str, Seen]:
    """Every account that a worker lists, those of other scenarios, too."""
    found: dict[str, Seen] = {}
    cursor: str | None = ""
    while cursor is not None:
        status, page = get(worker, f"/accounts?limit=500&complete=true{cursor and f'&cursor={quote(cursor)}'}")
        assert status == 200, page
        found |= {str(item["account_id"]): _seen_in(item) for item in page["items"]}
        cursor = page["cursor"]
    return found


def _past(worker: Worker, name: str) -> list[Any]:
    """The facts that a worker shows of an account, page by page."""
    facts: list[Any] = []
    cursor: int | None = 0
    while cursor is not None:
        status, page = get(worker, f"/accounts/{name}/events?limit=100&cursor={cursor}")
        if status != 200:
            return [status, page]
        facts += map(fact_in, page["items"])
        cursor = page["cursor"]
    return facts


def _partitions(*topics: str) -> list[Place]:
    return [Place(topic, partition) for topic in topics for partition in range(TOPOLOGY.partitions)]
