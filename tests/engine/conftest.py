"""What tests share that run the engine on fakes, which answer at once."""

import pytest

from shared.engine import asking, engine, lagging, pace


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL_WAIT_MS", 0)
    monkeypatch.setattr(pace, "PAUSE", 0.0)
    for module in (asking, engine, pace):
        monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.0)


@pytest.fixture
def no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """For workers that make a few turns, in which no time passes."""
    monkeypatch.setattr(lagging, "LAG_S", 0.0)
