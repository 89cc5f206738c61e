"""A request that reaches the broker late, by a connection that its client has given up, ends no other transaction."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event

import pytest

from shared.kafka.brokers import Brokers
from shared.kafka.spans import read_all
from shared.kafka.transactions import Record, TransactionAborted, TransactionalProducer, group_metadata
from shared.operations.provision import provision
from shared.runtime import failpoints
from shared.runtime.settings import Settings
from shared.topology.topics import Topic, Topology
from tests.faults.proxy import Proxy, broker_behind

pytestmark = pytest.mark.broker

EVENTS = Topic("late.events.v1")
TOPOLOGY = Topology("late", tables=(), topics=(EVENTS,))
END_TXN = 26  # the protocol's number of that request
DEADLINE_S = 60.0


class HoldingBack(Proxy):
    """Keeps the next request to end a transaction, and closes the connection that it came by."""

    def __init__(self, target: Callable[[], str]) -> None:
        super().__init__(target)
        self.is_to_keep = Event()
        self._kept: tuple[socket.socket, bytes] | None = None
        self._answered = Event()

    def let_go(self) -> None:
        """Returns once the broker has answered it."""
        assert self._kept is not None
        broker, request = self._kept
        broker.sendall(request)
        assert self._answered.wait(DEADLINE_S)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        if source.getsockname() == self._server.getsockname():
            self._pass_requests(source, sink)
        else:
            super()._pass(source, sink)  # ends with the answer to what was kept, as nobody takes it
            if self._kept is not None and self._kept[0] is source:
                self._answered.set()

    def _pass_requests(self, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError), client.makefile("rb") as requests:
            while size := requests.read(4):
                request = requests.read(int.from_bytes(size))
                if self.is_to_keep.is_set() and int.from_bytes(request[:2]) == END_TXN:
                    self.is_to_keep.clear()
                    self._kept = broker, size + request
                    client.shutdown(socket.SHUT_RDWR)
                    return
                broker.sendall(size + request)
        for each in (client, broker):
            each.close()
            self._sockets.discard(each)


@pytest.fixture
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HoldingBack]:
    with HoldingBack(lambda: kafka.bootstrap) as proxy:
        kafka = broker_behind(proxy, tmp_path_factory.mktemp("kafka"))
        with kafka:
            provision([TOPOLOGY], Settings(bootstrap=proxy.address))
            yield proxy


def test_a_late_commit_does_not_commit_the_next_transaction(
    proxy: HoldingBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, member = TransactionalProducer(proxy.address, "late_1"), group_metadata("late", 1, "worker")

    def fail(step: str) -> None:
        if step == "before_offsets":
            proxy.let_go()
            raise TransactionAborted("the worker has failed")

    proxy.is_to_keep.set()
    producer.send([Record(EVENTS.name, b"key", b"first", 0)])
    producer.commit({}, member)
    assert not proxy.is_to_keep.is_set()
    producer.send([Record(EVENTS.name, b"key", b"second", 0)])
    monkeypatch.setattr(failpoints, "reached", fail)
    with pytest.raises(TransactionAborted, match="the worker has failed"):
        producer.commit({}, member)
    assert [value for _, _, value in read_all(Brokers(proxy.address), EVENTS.name)] == [b"first"]
