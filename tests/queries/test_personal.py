"""A person's name on three workers: shown by each, in no file, and gone for ever once its key is dropped."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from shared.dev.cli import cli
from shared.dev.stack import Stack
from tests.queries.cluster import DEADLINE_S, client, eventually, path_of, post

pytestmark = [pytest.mark.broker, pytest.mark.anyio]

NAME = "Quentin Oddsworth"


@pytest.mark.usefixtures("known")
async def test_a_name_is_in_no_file_and_can_be_forgotten(cluster: Stack) -> None:
    urls, account_id = cluster.urls("accounts"), "account-of-quentin"
    async with client() as http:
        await post(http, urls[0] + path_of(account_id), {"holder": NAME})
        await _shown(http, urls, account_id, NAME)
        assert (await _changed(http, urls[1], account_id))["holder"] == NAME
        assert _files_with(cluster.root / "kafka", account_id), "its records are in no file"
        assert not _files_with(cluster.root, NAME)

        environment = {name: text for name, text in cluster.settings.environment().items() if text}
        told = CliRunner().invoke(cli, ["forget", "accounts", account_id], env=environment)
        assert told.output.startswith(f"accounts:{account_id} is forgotten"), told.output
        await _shown(http, urls, account_id, None)
        refused = await http.post(urls[2] + path_of(account_id), json={"holder": NAME})
        assert (refused.status_code, refused.json()["code"]) == (409, "person.forgotten")


async def _shown(http: httpx.AsyncClient, urls: list[str], account_id: str, name: str | None) -> None:
    """Returns when every worker shows it."""
    for url in urls:
        ask = partial(http.get, url + path_of(account_id))
        await eventually(ask, lambda answer: answer.status_code == 200 and answer.json()["holder"] == name)


async def _changed(http: httpx.AsyncClient, url: str, account_id: str) -> dict[str, Any]:
    """The account in the event of its next change."""
    async with asyncio.timeout(DEADLINE_S), http.stream("GET", f"{url}/changes/accounts?key={account_id}") as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        await post(http, f"{url}{path_of(account_id)}/charges", {"amount_cents": 5})
        async for line in lines:
            if line.startswith("data: "):
                row: dict[str, Any] = json.loads(line.removeprefix("data: "))["row"]
                return row
    raise AssertionError("the stream has ended")


def _files_with(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
