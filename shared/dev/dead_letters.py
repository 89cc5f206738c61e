"""`dead-letters`: shows, retries and discards records that a service could not handle."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer

from shared.dev import up
from shared.dev.asking import ask, first_answer
from shared.dev.stages import StageFailed

_PAGE = 500

cli = typer.Typer(
    name="dead-letters", no_args_is_help=True, help="Show, retry or discard records that could not be handled."
)

Url = Annotated[str | None, typer.Option(help="A worker of the service; by default one of this checkout's `up`.")]


@cli.command("list")
def show_all(service: str, url: Url = None) -> None:
    """Every parked key of SERVICE: its first record, why it is parked and how many wait behind it."""
    letters = _all(service, url)
    for letter in letters:
        print("{id}  offset {offset}, {behind} behind, tried {attempts} times: {code}, {reason}".format(**letter))
    print(f"{len(letters)} parked")


@cli.command()
def show(service: str, letter_id: Annotated[str, typer.Argument(metavar="ID")], url: Url = None) -> None:
    """One parked key."""
    for name, value in _ask(service, url, letter_id).items():
        print(f"{name:<10} {value}")


@cli.command()
def retry(
    service: str, letter_id: Annotated[str | None, typer.Argument(metavar="[ID]")] = None, url: Url = None
) -> None:
    """Handle the records parked under ID, or under each, in order, up to the first that fails again."""
    if letter_id is not None:
        _ask(service, url, letter_id)  # a worker takes any request, and looks for what is parked later
    for each in [letter["id"] for letter in _all(service, url)] if letter_id is None else [letter_id]:
        _ask(service, url, each, "retry")
    look = _command("show", service, url, letter_id) if letter_id else _command("list", service, url)
    print(f"asked; {look} shows what is left")


@cli.command()
def discard(
    service: str,
    letter_id: Annotated[str, typer.Argument(metavar="ID")],
    offset: Annotated[int, typer.Option(help="Of the first record, as `show` prints it; no other is ever dropped.")],
    reason: Annotated[str, typer.Option(help="Why; it goes into the log.")],
    url: Url = None,
) -> None:
    """Drop the first record parked under ID for good."""
    _ask(service, url, letter_id)
    _ask(service, url, letter_id, "discard", {"offset": offset, "reason": reason})
    look, again = (_command(verb, service, url, letter_id) for verb in ("show", "retry"))
    print(f"asked; {look} shows what is left, and {again} handles it")


def letters_of(url: str) -> Iterator[Mapping[str, Any]]:
    """Every parked key of the service whose worker is at `url`. Raises StageFailed."""
    cursor = None
    while True:
        page = ask(f"{url}/dead-letters?limit={_PAGE}&complete=true" + (f"&cursor={cursor}" if cursor else ""))
        yield from page["items"]
        cursor = page["cursor"]
        if cursor is None:
            return


def _all(service: str, url: str | None) -> Sequence[Mapping[str, Any]]:
    return first_answer(_workers(service, url), lambda worker: list(letters_of(worker)))


def _command(verb: str, service: str, url: str | None, *ids: str) -> str:
    """As one types it: an id may have spaces."""
    return f"`{shlex.join(['dead-letters', verb, service, *ids, *(['--url', url] if url else [])])}`"


def _ask(
    service: str, url: str | None, letter_id: str, action: str = "", body: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    if not letter_id:
        raise StageFailed("nothing has an empty ID", f"`dead-letters list {service}` shows those there are")
    path = f"/dead-letters/{quote(letter_id, safe='')}" + (f"/{action}" if action else "")
    method = "POST" if action else "GET"
    return first_answer(_workers(service, url), lambda worker: ask(f"{worker}{path}", method, body))


def _workers(service: str, url: str | None) -> Sequence[str]:
    if url:
        return [url.rstrip("/")]
    found = up.running(up.ROOT)
    if found is None:
        raise StageFailed("`up` does not run in this checkout", "name a worker with --url, or `python3 dev.py up`")
    if service not in found.services:
        running = ", ".join(found.services) or "none"
        raise StageFailed(f"`up` runs no {service}", f"name a worker with --url, or one that it runs: {running}")
    urls = [str(worker["url"]) for worker in found.services[service]]
    if not urls:
        raise StageFailed(f"no worker of {service} runs", f"`start {service}`, or name a worker with --url")
    return urls
