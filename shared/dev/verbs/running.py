"""A broker and workers of this checkout: `up` and what stops and starts what it runs."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from shared.dev import here
from shared.dev import up as local_stack
from shared.dev.worker import faust_command, free_port
from shared.operations.provision import provision
from shared.privacy.persons import url_of
from shared.runtime.settings import load_settings

cli = typer.Typer()


@cli.command()
def up(
    service: Annotated[list[str] | None, typer.Argument(help="By default all; `start` adds others later.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Of each service; 0 for `rebuild` and `reprocess`.")] = 1,
    brokers: Annotated[Literal["1", "3"], typer.Option(help="3 keep 3 copies of everything.")] = "1",
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON once all is ready.")] = False,
) -> None:
    """Start a broker and workers of services, and keep them running until Ctrl-C. Data stay in .onefold/up."""
    for each in service or ():
        here.check_known(each)
    local_stack.up(local_stack.ROOT, workers, int(brokers), json, service or here.services())


@cli.command()
def down() -> None:
    """Stop what `up` of this checkout started."""
    print("stopped" if local_stack.down(local_stack.ROOT) else "nothing was running")


@cli.command()
def stop(
    service: str,
    worker: Annotated[
        list[str] | None, typer.Option(help="The URL of one on this machine, whoever has started it; repeatable.")
    ] = None,
) -> None:
    """Stop the workers of SERVICE that `up` keeps running, until `start`; or only those that are named."""
    if worker:
        stopped = [local_stack.stop_worker(local_stack.ROOT, service, url) for url in worker]
    else:
        stopped = local_stack.stop_workers(local_stack.ROOT, service)
    print("\n".join(f"stopped {url}" for url in stopped) or f"{service} was stopped already")


@cli.command()
def start(service: str) -> None:
    """Start the workers of SERVICE that `stop` ended, or of a new one, with code and topics as they are now."""
    here.check_known(service)
    local_stack.check_settings(local_stack.found(local_stack.ROOT))
    here.join_up()
    print("".join(f"created {topic}\n" for topic in provision(here.topologies(), load_settings())), end="")
    print("\n".join(f"ready {url}" for url in local_stack.start_workers(local_stack.ROOT, service)))


@cli.command()
def worker(service: str) -> None:
    """Become one worker of SERVICE, with settings from the environment; while `up` runs, on its broker."""
    here.check_known(service)
    data_dir = os.environ.get("ONEFOLD_DATA_DIR")
    if here.join_up():
        if data_dir:  # of its stores alone
            os.environ |= {"ONEFOLD_PERSON_KEYS": url_of(load_settings()), "ONEFOLD_DATA_DIR": data_dir}
        port = str(free_port(range(8000, 9000)))
        os.environ.setdefault("ONEFOLD_HTTP_PORT", port)
        os.environ.setdefault("ONEFOLD_INSTANCE", port)
    load_settings()  # a wrong one is reported here, not at the end of a long traceback
    command = faust_command(service)
    os.execv(command[0], command)
