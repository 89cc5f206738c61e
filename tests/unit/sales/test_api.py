"""The days and hours in sales' paths and options."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.http.services import api_of, client_of


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("days/1997-01-18", 404),
        ("days/1997%2D01%2D18", 404),
        ("days/853545600", 422),
        ("days/1997-01-32", 422),
        ("days/%FF", 422),
        ("hours/sat-09", 404),
        ("hours/sat%2D09", 404),
        ("hours/sat-24", 422),
        ("customers/1?as_of=1997-01-18", 404),
        ("customers/1?as_of=853545600", 422),
    ],
)
def test_a_day_or_an_hour_is_read_escaped_or_not_and_never_guessed(target: str, status: int) -> None:
    """pydantic reads 853545600 as a day of 1997."""

    async def asked() -> int:
        async with client_of(api_of("sales")) as http:
            return (await http.get(f"/sales/{target}")).status_code

    assert asyncio.run(asked()) == status
