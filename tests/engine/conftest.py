"""What tests share that run the engine on fakes, which answer at once."""

import pytest

from shared.engine import engine


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL_WAIT_MS", 0)
    monkeypatch.setattr(engine, "PAUSE", 0.0)
    monkeypatch.setattr(engine, "RETRY_PAUSE_S", 0.0)
