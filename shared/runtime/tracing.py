"""Sends a process's spans to a collector, from a thread of its own. Nobody waits for a collector: spans it misses are
counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import Empty, Full, Queue
from threading import Event, Thread
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import structlog
from prometheus_client import Counter
from pydantic_core import to_json

from shared.runtime.settings import Settings
from shared.runtime.traces import Span, as_otlp, bound_of, is_below

log = structlog.get_logger(__name__)

QUEUED = 10_000  # spans; some 10 MB
AT_ONCE = 500  # in one request
EVERY_S = 1.0
ANSWER_S = 5.0
TRY_AGAIN = frozenset({429, 502, 503, 504})  # by OTLP's definition; any other refusal would come again


class Tracing:
    """What is traced, and where it is sent. spans: how many were sent, and how many lost."""

    def __init__(self, url: str, share: float, worker: str) -> None:
        """worker: its name among those of its service."""
        self.worker = worker
        self.spans = Counter("onefold_spans", "Spans of traces sent to the collector, or lost", ["fate"], registry=None)
        self._sent, self._lost = self.spans.labels("sent"), self.spans.labels("lost")
        self._url = url
        self._bound = bound_of(share)
        self._queue: Queue[Span] = Queue(QUEUED)
        self._unsent: Sequence[Span] = ()  # while the collector does not take them
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="traces", daemon=True)
        # a collector is near: an environment's proxy for everything does not lead to it
        self._open = build_opener(ProxyHandler({})).open

    def takes(self, correlation_id: str) -> bool:
        """Whether the story is traced."""
        return is_below(correlation_id, self._bound)

    def tell(self, spans: Sequence[Span]) -> None:
        """Returns at once, from any thread."""
        for number, span in enumerate(spans):
            try:
                self._queue.put_nowait(span)
            except Full:
                self._lost.inc(len(spans) - number)
                return

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Sends what is left, if the collector takes it at once. Blocks until then."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(ANSWER_S)

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_S):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while spans := self._unsent or self._waiting():
            was_away, self._unsent = bool(self._unsent), spans
            if problem := self._problem(spans):
                if not was_away:
                    log.warning("the collector of traces does not take spans, trying again", reason=problem)
                return
            if was_away:
                log.info("the collector of traces takes spans again")
            self._unsent = ()

    def _waiting(self) -> Sequence[Span]:
        found: list[Span] = []
        try:
            while len(found) < AT_ONCE:
                found.append(self._queue.get_nowait())
        except Empty:
            pass
        return found

    def _problem(self, spans: Sequence[Span]) -> str | None:
        """Why they are to be sent again; None once they are sent, or can't ever be."""
        request = Request(self._url, to_json(as_otlp(spans)), {"Content-Type": "application/json"})
        try:
            self._open(request, timeout=ANSWER_S).close()
        except HTTPError as refusal:
            refusal.close()
            if refusal.code in TRY_AGAIN:
                return f"HTTP {refusal.code}"
            log.warning("the collector of traces refuses spans", status=refusal.code)
            self._lost.inc(len(spans))
        except OSError as failure:
            return str(failure)
        else:
            self._sent.inc(len(spans))
        return None


def tracing_of(settings: Settings) -> Tracing | None:
    """None where nothing is traced."""
    return Tracing(settings.otlp, settings.traces, settings.instance) if settings.otlp and settings.traces else None
