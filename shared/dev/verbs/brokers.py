"""What brokers hold beside records: topics, rules, a mirror; and Kafka's own tools."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from shared.dev import here
from shared.dev import up as local_stack
from shared.dev.stages import StageFailed
from shared.dev.verbs.becoming import ANY_ARGUMENTS
from shared.kafka.brokers import Brokers
from shared.operations.acls import create_principals, grant
from shared.operations.mirror import Mirror, mirror_properties, mirrored_topics, signed_in
from shared.operations.provision import (
    Difference,
    TopicSpec,
    declared_topics,
    differences,
    found_topics,
    load_services,
    provision,
)
from shared.operations.tools import TOOLS, run_tool
from shared.runtime.java import as_properties
from shared.runtime.settings import load_settings

cli = typer.Typer()


@cli.command("provision")
def provision_() -> None:
    """Create the declared topics that are missing, and check the others."""
    here.join_up()
    created = provision(here.topologies(), load_settings())
    print("\n".join([*(f"created {name}" for name in created), "all topics are as declared"]))


@cli.command("grant")
def grant_(
    passwords: Annotated[
        Path | None, typer.Option(help="A folder with a password file for each service: create its principal, too.")
    ] = None,
) -> None:
    """Allow the principal named after each service what it needs on the brokers, by rules from what it declares."""
    services, settings = load_services(), load_settings()
    if passwords:
        names = [each.topology.service for each in services]
        found = {name: _password(passwords / name) for name in names}
        create_principals(found, settings.bootstrap, settings.kafka_mechanism)
    print(f"{grant(services, settings.bootstrap)} rules are in force")


def _password(file: Path) -> str:
    if found := file.read_text().strip():
        return found
    raise StageFailed(f"{file} is empty", "write the password into it, or delete it and run `secrets`")


@cli.command()
def mirror(
    target: Annotated[str, typer.Argument(help="Brokers of the second cluster.")],
    show: Annotated[bool, typer.Option("--show", help="Show MirrorMaker's properties, and start nothing.")] = False,
) -> None:
    """Copy what can not be computed again to a second cluster by MirrorMaker, until Ctrl-C."""
    here.join_up()
    settings = load_settings()
    topics = mirrored_topics(here.topologies())
    if {*target.split(",")} & {*settings.bootstrap.split(",")} or (
        not show and _one_cluster(settings.bootstrap, target, topics)
    ):
        same = f"{target} is where the records come from: it would get all of them again and again"
        raise StageFailed(same, "name the second cluster, or the first one in ONEFOLD_BOOTSTRAP")
    properties = mirror_properties(topics, settings.bootstrap, target, settings.replication)
    if show:
        print(as_properties(properties), end="")
        return
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background commands would ignore the first
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt), Mirror(signed_in(properties), local_stack.ROOT.parent / "mirror") as running:
        print(f"{len(topics)} topics are copied from {settings.bootstrap} to {target}; log: {running.log}", flush=True)
        running.wait()
        running.check()


def _one_cluster(source: str, target: str, topics: Sequence[str]) -> bool:
    """Whether they name one cluster, perhaps by different addresses. Raises BrokersUnavailable or StageFailed."""
    found = Brokers(source).topic_ids(topics)
    if not found:
        raise StageFailed(f"{source} has none of the topics that are mirrored", "`provision` there first")
    return not found.isdisjoint(Brokers(target).topic_ids(topics))


@cli.command("kafka", context_settings=ANY_ARGUMENTS, add_help_option=False)
def kafka_(context: typer.Context, tool: Annotated[str, typer.Argument(help=" | ".join(TOOLS))]) -> None:
    """Run one of Kafka's own tools, such as `kafka topics --list`: it is told where the brokers are, and signs in."""
    if tool not in TOOLS:
        raise StageFailed(f"no tool is called {tool}", f"name one of: {', '.join(TOOLS)}")
    here.join_up()
    raise typer.Exit(run_tool(tool, context.args, load_settings().bootstrap))


@cli.command()
def topics() -> None:
    """Show every declared topic, and each setting that differs on the brokers. Exits with 1 if one does."""
    here.join_up()
    settings = load_settings()
    declared = declared_topics(here.topologies(), settings)
    wrong = differences(declared, found_topics(declared, settings.bootstrap))
    rows = [_row(name, spec, wrong) for name, spec in declared.items()]
    _print_columns([("topic", "partitions", "copies", "cleanup", "retention ms", "min ISR", "found"), *rows])
    if wrong:
        print("\n".join(map(str, wrong)))
        raise typer.Exit(1)


def _row(name: str, spec: TopicSpec, wrong: Sequence[Difference]) -> tuple[str, ...]:
    config = spec.config
    kept = (config["cleanup.policy"], config["retention.ms"], config["min.insync.replicas"])
    off = ", ".join(f"{each.setting} {each.found}" for each in wrong if each.topic == name)
    return name, str(spec.partitions), str(spec.replication), *kept, off or "as declared"


def _print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
