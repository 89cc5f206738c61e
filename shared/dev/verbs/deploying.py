"""What a deployment of the system needs: secrets, manifests, tokens to try it with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from shared.dev import here
from shared.dev.issuer import DevIssuer
from shared.runtime.checkout import CHECKOUT

cli = typer.Typer()


@cli.command("secrets")
def secrets_(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", show_default=False, help="By default .onefold/secrets.")
    ] = (CHECKOUT / ".onefold" / "secrets"),
) -> None:
    """Make the secrets that compose.secure.yml gives its containers; existing ones stay, as long as they are valid."""
    from shared.dev.secured import make_secrets  # with what makes certificates, which no container starts with

    made = make_secrets(folder, here.services())
    print("\n".join(f"created {file}" for file in made) or "all are there")


@cli.command()
def kubernetes(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of the Kustomize base; your overlay is elsewhere.")],
) -> None:
    """Write what each topology needs on Kubernetes: workers, services, probes, budgets, jobs, and scaling by lag."""
    from shared.dev.kubernetes import write  # with what writes YAML, which no image has

    print("\n".join(map(str, write(folder, here.topologies()))))


@cli.command()
def token(
    service: str,
    owner: Annotated[str, typer.Option(help="The id of the aggregate its bearer owns.")] = "nobody",
    scope: Annotated[list[str] | None, typer.Option(help="Instead of all; can be repeated.")] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="How long it is valid.")] = 60.0,
    settings: Annotated[
        bool, typer.Option("--settings", help="Show instead the settings that make a worker ask for it.")
    ] = False,
) -> None:
    """Issue a bearer token for SERVICE, signed with this checkout's own key: for development only."""
    here.check_known(service)
    issuer = DevIssuer()
    if settings:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in issuer.environment(service).items()))
    else:
        scopes = scope or [
            f"{service}:read",
            f"{service}:write",
            f"{service}:any",
            "operations:read",
            "operations:write",
        ]
        print(issuer.token(service, scopes, owner, minutes * 60))
