"""`dead-letters`: what the services of this checkout's `up` could not handle, and what is to be done with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from shared.dev import up
from shared.dev.stages import StageFailed

TIMEOUT_S = 30.0
PAGE = 500

cli = typer.Typer(no_args_is_help=True, help="Show, retry or discard records that could not be handled.")

Url = Annotated[str | None, typer.Option(help="A worker of the service; by default one of this checkout's `up`.")]


@cli.command("list")
def show_all(service: str, url: Url = None) -> None:
    """Every parked key of SERVICE: its first record, why it is parked and how many wait behind it."""
    letters = list(letters_of(url or _worker(service)))
    for letter in letters:
        print("{id}  offset {offset}, {behind} behind, tried {attempts} times: {code}, {reason}".format(**letter))
    print(f"{len(letters)} parked")


@cli.command()
def show(service: str, letter_id: Annotated[str, typer.Argument(metavar="ID")], url: Url = None) -> None:
    """One parked key."""
    for name, value in _ask("GET", _path(service, url, letter_id)).items():
        print(f"{name:<10} {value}")


@cli.command()
def retry(service: str, letter_id: Annotated[str, typer.Argument(metavar="ID")], url: Url = None) -> None:
    """Handle what is parked under ID, in order, up to the first record that fails again."""
    _ask("POST", f"{_path(service, url, letter_id)}/retry")
    print(f"asked; `dead-letters show {service} {letter_id}` tells what is left")


@cli.command()
def discard(
    service: str,
    letter_id: Annotated[str, typer.Argument(metavar="ID")],
    offset: Annotated[int, typer.Option(help="Of the first record, as `show` has it; another is never dropped.")],
    reason: Annotated[str, typer.Option(help="Why; it goes into the log.")],
    url: Url = None,
) -> None:
    """Drop the first record parked under ID for good."""
    _ask("POST", f"{_path(service, url, letter_id)}/discard", {"offset": offset, "reason": reason})
    print(f"asked; `dead-letters retry {service} {letter_id}` lets go what waits behind it")


def letters_of(url: str) -> Iterator[Mapping[str, Any]]:
    """Every parked key of the service that the worker at `url` is of. Raises StageFailed."""
    cursor = None
    while True:
        page = _ask("GET", f"{url}/dead-letters?limit={PAGE}&complete=true" + (f"&cursor={cursor}" if cursor else ""))
        yield from page["items"]
        cursor = page["cursor"]
        if cursor is None:
            return


def _path(service: str, url: str | None, letter_id: str) -> str:
    return f"{url or _worker(service)}/dead-letters/{quote(letter_id, safe='')}"


def _worker(service: str) -> str:
    found = up.running(up.ROOT)
    if found is None:
        raise StageFailed("`up` does not run in this checkout", "start it, or name a worker with --url")
    if service not in found.services:
        raise StageFailed(f"no service is called {service}", f"name one of: {', '.join(found.services)}")
    return str(found.services[service][0]["url"])


def _ask(method: str, url: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    try:
        answer = httpx.request(method, url, json=body, timeout=TIMEOUT_S)
    except httpx.TransportError as error:
        raise StageFailed(f"{url} does not answer: {error}", "see that the worker runs, or name another") from error
    if answer.is_error:
        raise StageFailed(answer.json()["detail"], "see `dead-letters list`, or try again when the service is ready")
    return dict(answer.json())
