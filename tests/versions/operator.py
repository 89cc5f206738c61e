"""Who types the commands of versions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from typer.testing import CliRunner

from shared.dev.cli import cli
from shared.domain.errors import OnefoldError
from shared.topology import Service


class Operator:
    """Types commands in a checkout with one service."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch, service: Callable[[int, str], Service]) -> None:
        self._name = name
        self._service = service
        self._monkeypatch = monkeypatch
        self.declares(1)

    def declares(self, version: int) -> None:
        """The checkout, from now on."""
        self._monkeypatch.setattr("shared.dev.versions.load_services", lambda: [self._service(version, self._name)])

    def __call__(self, verb: str, *options: str) -> str:
        """What it prints. Raises OnefoldError."""
        found = CliRunner().invoke(cli, [verb, self._name, *options])
        if isinstance(found.exception, OnefoldError):
            raise found.exception
        assert found.exit_code in (0, 1), found.output
        return found.output

    def refused(self, verb: str, *options: str) -> str:
        with pytest.raises(OnefoldError) as refusal:
            self(verb, *options)
        return str(refusal.value)

    def has(self, verb: str) -> bool:
        """Whether it is not refused."""
        with suppress(OnefoldError):
            return "done" in self(verb)
        return False
