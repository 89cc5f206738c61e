"""Records of a task that is run again are there once, also while its former run has not ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from shared.kafka import appending
from shared.kafka.access import client_config
from shared.kafka.appending import AppendedElsewhere, Appending, appending_config
from shared.kafka.brokers import Brokers
from shared.kafka.spans import read_all
from shared.runtime.positions import Place

pytestmark = pytest.mark.broker
RECORDS = [(b"key", b"%d" % number) for number in range(8)]


@pytest.fixture
def task(bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Appending]:
    """A run of it. Of 3 records at a time."""
    monkeypatch.setattr(appending, "AT_ONCE", 3)
    config = appending_config(bootstrap) | {"transactional.id": f"{topic}_task"}
    start = Brokers(bootstrap).settled_ends(topic)[0]
    return lambda: Appending(config, client_config(bootstrap), Place(topic, 0), start)


def test_a_run_goes_on_after_what_the_one_before_has_committed_and_fences_it(
    bootstrap: str, topic: str, task: Callable[[], Appending]
) -> None:
    def slow() -> Iterator[tuple[bytes, bytes]]:
        yield from RECORDS[:4]  # three of them are committed
        assert task().all(RECORDS) == len(RECORDS)
        yield from RECORDS[4:]

    with pytest.raises(KafkaException, match=r"_FENCED|INVALID_PRODUCER_EPOCH"):
        task().all(slow())
    assert task().all(RECORDS) == len(RECORDS)
    assert [(key, value) for _, key, value in read_all(Brokers(bootstrap), topic)] == RECORDS


def test_what_was_there_before_is_none_of_the_records(
    bootstrap: str, topic: str, put: Callable[..., None], task: Callable[[], Appending]
) -> None:
    put(b"older", partition=1)
    assert task().all(RECORDS[:2]) == 2
    assert [value for _, _, value in read_all(Brokers(bootstrap), topic)] == [b"0", b"1", b"older"]


def test_what_somebody_else_has_written_since_is_taken_for_none_of_them(
    topic: str, put: Callable[..., None], task: Callable[[], Appending]
) -> None:
    run = task()
    put(b"another's", partition=0)
    with pytest.raises(
        AppendedElsewhere, match=f"{topic}, partition 0: somebody else has written there meanwhile; fix: "
    ):
        run.all(RECORDS[:2])


def test_what_comes_in_a_commit_of_unknown_result_is_written_once(
    bootstrap: str, topic: str, task: Callable[[], Appending], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = iter([True])
    write = Appending._write

    def without_an_answer(self: Appending, *given: object) -> None:
        write(self, *given)  # type: ignore[arg-type]
        if next(lost, False):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(Appending, "_write", without_an_answer)
    assert task().all(RECORDS) == len(RECORDS)
    assert [(key, value) for _, key, value in read_all(Brokers(bootstrap), topic)] == RECORDS


def test_a_record_that_can_never_be_written_ends_the_task(task: Callable[[], Appending]) -> None:
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        task().all([(b"key", b"x" * 2_000_000)])
