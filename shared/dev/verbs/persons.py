"""`forget`: the one change of data that can't be undone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from pydantic import BaseModel

from shared.dev import here
from shared.dev.stages import StageFailed
from shared.domain.ids import reference
from shared.domain.personal import personal_fields
from shared.privacy.persons import PersonKeys, check_person_keys, url_of
from shared.privacy.sealing import KEPT_S
from shared.runtime.settings import load_settings

cli = typer.Typer()


@cli.command()
def forget(
    service: str, aggregate_id: Annotated[str, typer.Argument(help="Of the aggregate that stands for the person.")]
) -> None:
    """Drop the key of a person's data for ever: nobody can read them any more, in any topic, archive or mirror.

    Exits with 1 if there was none.
    """
    here.check_known(service)
    here.join_up()
    check_person_keys(settings := load_settings())
    person, keys = reference(service, aggregate_id), PersonKeys(url_of(settings))
    if not _keeps_persons(service) and person not in keys.of([person]):  # an earlier release may have kept some
        fix = "name the service whose aggregates stand for persons"
        raise StageFailed(f"{service} has no personal fields, and {person} no key", fix)
    if not keys.forget(person):
        print(
            f"{person} had no key in {keys.database}, and will never have one; check that it is the workers' database"
        )
        raise typer.Exit(1)
    print(f"{person} is forgotten; in {KEPT_S:.0f} s at most, no worker shows anything personal of them")


def _keeps_persons(service: str) -> bool:
    decider = here.declaration(service).decider
    commands: Iterable[type[BaseModel]] = decider.commands if decider else ()
    return any(map(personal_fields, commands))
