"""The project's own command line; `python3 dev.py VERB` hands over to it."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import typer

from shared.console.watch import Workers
from shared.dev import console, dead_letters, new_project, patterns, record, remove_demo, scaffold, schemas, whose
from shared.dev import up as local_stack
from shared.dev.asyncapi import document_of
from shared.dev.doctor import Diagnosis, diagnose
from shared.dev.effects import effect_cli
from shared.dev.environment import explain_os_error
from shared.dev.formats import Format, shown_as
from shared.dev.importing import fill, send_next
from shared.dev.issuer import DevIssuer
from shared.dev.rename import MEANS, rename
from shared.dev.repartition import repartition
from shared.dev.reprocess import reprocess
from shared.dev.sinks import sink_cli
from shared.dev.stages import StageFailed, check_known, stage
from shared.dev.status import shown, status
from shared.dev.story import drawn, story_of
from shared.dev.upgrade import upgrade
from shared.dev.variables import variables
from shared.dev.versions import versions_cli
from shared.dev.worker import faust_command, free_port
from shared.domain.errors import OnefoldError
from shared.domain.ids import reference
from shared.domain.personal import personal_fields
from shared.kafka.brokers import Brokers
from shared.operations.acls import create_principals, grant
from shared.operations.export import export, service_in
from shared.operations.mirror import Mirror, mirror_properties, mirrored_topics, signed_in
from shared.operations.provision import (
    Difference,
    TopicSpec,
    declared_topics,
    differences,
    found_topics,
    load_services,
    load_topologies,
    provision,
)
from shared.operations.tools import TOOLS, run_tool
from shared.privacy.persons import PersonKeys, check_person_keys, url_of
from shared.privacy.sealing import KEPT_S
from shared.runtime.checkout import CHECKOUT, found_services
from shared.runtime.declared import declared
from shared.runtime.java import as_properties
from shared.runtime.settings import Settings, load_settings
from shared.runtime.traces import as_otlp
from shared.stories.traces import spans_of
from shared.topology.topics import Topology

_OF_UP = (
    "ONEFOLD_BOOTSTRAP",
    "ONEFOLD_REPLICATION",
    "ONEFOLD_MIN_ISR",
    "ONEFOLD_DATA_DIR",
    "ONEFOLD_PERSON_KEYS",
)
_WorkerUrls = Annotated[
    list[str] | None,
    typer.Option(help="A worker of a service, as SERVICE=URL; can be repeated. By default those of `up`."),
]
_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}

cli = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
cli.add_typer(dead_letters.cli, name="dead-letters")
cli.add_typer(sink_cli(lambda: _join_up()), name="sink")
cli.add_typer(versions_cli(lambda: _join_up()))
cli.add_typer(effect_cli(lambda service: _workers_of(_join_up()).get(service, ())), name="effect")


@cli.command()
def up(
    service: Annotated[list[str] | None, typer.Argument(help="By default all; `start` adds others later.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Of each service; 0 for `rebuild` and `reprocess`.")] = 1,
    brokers: Annotated[Literal["1", "3"], typer.Option(help="3 keep 3 copies of everything.")] = "1",
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON once all is ready.")] = False,
) -> None:
    """Start a broker and workers of services, and keep them running until Ctrl-C. Data stay in .onefold/up."""
    for each in service or ():
        _check_known(each)
    local_stack.up(local_stack.ROOT, workers, int(brokers), json, service or found_services())


@cli.command()
def down() -> None:
    """Stop what `up` of this checkout started."""
    print("stopped" if local_stack.down(local_stack.ROOT) else "nothing was running")


@cli.command("new-service")
def new_service(
    name: Annotated[str, typer.Argument(help="One lower-case word, a plural such as bookings.")],
    kind: Annotated[
        Literal["aggregate", "process", "projection", "claim", "effect"] | None,
        typer.Option(help="A small pattern to begin with."),
    ] = None,
    like: Annotated[str | None, typer.Option(help="Instead of a pattern, one of your services to copy.")] = None,
    on: Annotated[
        str | None, typer.Option(metavar="EVENT", help="What a process or a projection is told, such as order.placed.")
    ] = None,
    singular: Annotated[str | None, typer.Option(help="The singular of NAME, if not NAME without its s.")] = None,
) -> None:
    """Make a service with its tests from a pattern or a service; you then change its domain, api and topology."""
    if like is not None:
        if kind or on:
            raise StageFailed("--like copies a service as it is", "leave out --kind and --on, or --like")
        made = scaffold.new_service(CHECKOUT, name, like, singular)
        record.remember(CHECKOUT, "new-service", name=name, like=like, singular=singular)
    elif kind is not None:
        told = patterns.foreign(CHECKOUT, kind, on)
        made = scaffold.new_of_kind(CHECKOUT, name, kind, told, singular)
        of_another = {"on": told.event, "topic": told.topic, "partitions": told.partitions} if told else {}
        record.remember(CHECKOUT, "new-service", name=name, kind=kind, **of_another, singular=singular)
    else:
        fix = "--kind aggregate, process, projection, claim or effect; or --like SERVICE"
        raise StageFailed("what kind of service is it?", fix)
    print("\n".join(f"created  {folder}" for folder in made.folders))
    print(f"renamed  {', '.join(f'{old} to {new}' for old, new in made.words.items())}")
    print("".join(f"changed  {file}: {what}\n" for file, what in made.additions.items()), end="")
    print(f"changed  {record.FILE}: upgrades do it again")
    print(f"try      python3 dev.py {f'test {made.folders[-1]}' if len(made.folders) > 1 else 'check'}")


@cli.command("new-project")
def new_project_(
    folder: Annotated[Path, typer.Argument(help="New.")],
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and -, such as ticket-office.")],
) -> None:
    """Make a project of your own of what is committed here: the engine with its tests, and no example."""
    release = new_project.new_project(CHECKOUT, folder.resolve(), name)
    print(f"created  {folder}, from {release}; its first commit is yours")
    print(f"next     cd {folder}")
    print("         python3 dev.py new-service NAME --kind aggregate")


@cli.command("remove-demo")
def remove_demo_(yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Remove the shop and what demonstrates it; accounts stays, as you can copy it."""
    if local_stack.running(local_stack.ROOT):
        raise StageFailed("`up` runs services that would be removed", "end it first: python3 dev.py down")
    plan = remove_demo.plan(CHECKOUT)
    print("\n".join(f"remove  {path.relative_to(CHECKOUT)}" for path in plan.gone))
    print("\n".join(f"edit    {path.relative_to(CHECKOUT)}" for path in plan.edited))
    print("".join(f"note    services/{service} names topics that are removed\n" for service in plan.dependent), end="")
    if not yes:
        typer.confirm("go on?", abort=True)
    remove_demo.carry_out(plan)
    record.remember(CHECKOUT, "remove-demo")
    print("".join(f"look at {name}: it is not as it was\n" for name in plan.missed), end="")
    topics = f"({'|'.join(remove_demo.SERVICES)})[.-].*"
    print(f"note    their topics stay on brokers: python3 dev.py kafka topics --delete --topic '{topics}'")
    print("note    those of `up` are in .onefold/up, with all others: rm -r .onefold/up")
    print("try     python3 dev.py test")


@cli.command("rename")
def rename_(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and -, such as ticket-office.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it means, and change nothing.")] = False,
) -> None:
    """Give the project another name, once: distribution, Compose, images, headers, settings and metrics."""
    if local_stack.running(local_stack.ROOT):
        raise StageFailed("`up` runs workers that have the old name", "end it first: python3 dev.py down")
    for old, new in rename(CHECKOUT, name, dry_run=dry_run).items():
        print(f"{'would be' if dry_run else 'renamed '} {old} to {new}")
    print("\n".join(f"note     {each}" for each in MEANS))
    if not dry_run:
        print("try      python3 dev.py check, then commit all of it")


@cli.command("upgrade")
def upgrade_(
    tag: Annotated[str | None, typer.Argument(help="Such as v1.1.0; by default the newest.")] = None,
    source: Annotated[str | None, typer.Option("--from", metavar="PATH|URL", help="The template; remembered.")] = None,
) -> None:
    """Merge a newer release of the template into what is committed here, on a branch.

    What new-service and others have done here is done to the releases first: fixes reach copied services, too.
    Exits with 1 if the branch has conflicts, with 2 if there is none.
    """
    try:
        done = upgrade(CHECKOUT, tag, source)
    except (StageFailed, OSError) as failure:
        print(failure, file=sys.stderr)
        raise typer.Exit(2) from None
    print("\n".join(done.lines()))
    raise typer.Exit(1 if done.conflicts else 0)


@cli.command("whose")
def whose_(
    source: Annotated[
        str | None, typer.Option("--from", metavar="PATH|URL", help="The template, to get the release from.")
    ] = None,
) -> None:
    """List the template's files that are edited here; onefold.toml says which paths are whose."""
    if source is not None:
        whose.fetch(CHECKOUT, source)
    print("".join(f"{path}\n" for path in whose.edited(CHECKOUT)), end="")


@cli.command()
def forget(
    service: str, aggregate_id: Annotated[str, typer.Argument(help="Of the aggregate that stands for the person.")]
) -> None:
    """Drop the key of a person's data for ever: nobody can read them any more, in any topic, archive or mirror.

    Exits with 1 if there was none.
    """
    _check_known(service)
    _join_up()
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
    decider = declared(f"services.{service}", "service", "SERVICE").decider
    return decider is not None and any(map(personal_fields, decider.commands))


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
    _check_known(service)
    local_stack.check_settings(local_stack.found(local_stack.ROOT))
    _join_up()
    print("".join(f"created {topic}\n" for topic in provision(load_topologies(), load_settings())), end="")
    print("\n".join(f"ready {url}" for url in local_stack.start_workers(local_stack.ROOT, service)))


@cli.command()
def worker(service: str) -> None:
    """Become one worker of SERVICE, with settings from the environment; while `up` runs, on its broker."""
    _check_known(service)
    data_dir = os.environ.get("ONEFOLD_DATA_DIR")
    if _join_up():
        if data_dir:  # of its stores alone
            os.environ |= {"ONEFOLD_PERSON_KEYS": url_of(load_settings()), "ONEFOLD_DATA_DIR": data_dir}
        port = str(free_port(range(8000, 9000)))
        os.environ.setdefault("ONEFOLD_HTTP_PORT", port)
        os.environ.setdefault("ONEFOLD_INSTANCE", port)
    load_settings()  # a wrong one is reported here, not at the end of a long traceback
    command = faust_command(service)
    os.execv(command[0], command)


def _check_known(service: str) -> None:
    check_known(service, found_services())


@cli.command("provision")
def provision_() -> None:
    """Create the declared topics that are missing, and check the others."""
    _join_up()
    created = provision(load_topologies(), load_settings())
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


@cli.command("secrets")
def secrets_(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", show_default=False, help="By default .onefold/secrets.")
    ] = (CHECKOUT / ".onefold" / "secrets"),
) -> None:
    """Make the secrets that compose.secure.yml gives its containers; existing ones stay, as long as they are valid."""
    from shared.dev.secured import make_secrets  # with what makes certificates, which no container starts with

    made = make_secrets(folder, found_services())
    print("\n".join(f"created {file}" for file in made) or "all are there")


@cli.command()
def kubernetes(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of the Kustomize base; your overlay is elsewhere.")],
) -> None:
    """Write what each topology needs on Kubernetes: workers, services, probes, budgets, jobs, and scaling by lag."""
    from shared.dev.kubernetes import write  # with what writes YAML, which no image has

    print("\n".join(map(str, write(folder, load_topologies()))))


@cli.command()
def mirror(
    target: Annotated[str, typer.Argument(help="Brokers of the second cluster.")],
    show: Annotated[bool, typer.Option("--show", help="Show MirrorMaker's properties, and start nothing.")] = False,
) -> None:
    """Copy what can not be computed again to a second cluster by MirrorMaker, until Ctrl-C."""
    _join_up()
    settings = load_settings()
    topics = mirrored_topics(load_topologies())
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
    here = Brokers(source).topic_ids(topics)
    if not here:
        raise StageFailed(f"{source} has none of the topics that are mirrored", "`provision` there first")
    return not here.isdisjoint(Brokers(target).topic_ids(topics))


@cli.command("kafka", context_settings=_ANY_ARGUMENTS, add_help_option=False)
def kafka_(context: typer.Context, tool: Annotated[str, typer.Argument(help=" | ".join(TOOLS))]) -> None:
    """Run one of Kafka's own tools, such as `kafka topics --list`: it is told where the brokers are, and signs in."""
    if tool not in TOOLS:
        raise StageFailed(f"no tool is called {tool}", f"name one of: {', '.join(TOOLS)}")
    _join_up()
    raise typer.Exit(run_tool(tool, context.args, load_settings().bootstrap))


@cli.command()
def topics() -> None:
    """Show every declared topic, and each setting that differs on the brokers. Exits with 1 if one does."""
    _join_up()
    settings = load_settings()
    declared = declared_topics(load_topologies(), settings)
    wrong = differences(declared, found_topics(declared, settings.bootstrap))
    rows = [_row(name, spec, wrong) for name, spec in declared.items()]
    _print_columns([("topic", "partitions", "copies", "cleanup", "retention ms", "min ISR", "found"), *rows])
    if wrong:
        print("\n".join(map(str, wrong)))
        raise typer.Exit(1)


@cli.command("status")
def status_(url: _WorkerUrls = None) -> None:
    """Show who owns what, how far behind, what is parked and what would be lost. Exits with 1 if a line has a `!`."""
    topologies, workers = _seen_workers(url)
    report = status(topologies, workers, load_settings())
    print("\n".join(shown(report)))
    if any(line.wrong for lines in report.values() for line in lines):
        raise typer.Exit(1)


@cli.command("doctor")
def doctor_(
    url: _WorkerUrls = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Say what is wrong, why it matters and what mends it; nothing if all is well.

    Exits with 5 if records wait or can be lost, 4 if harm is near, 3 if something is wasted, 1 if it can't look.
    """
    topologies, workers = _seen_workers(url)
    diagnosis = diagnose(topologies, workers, load_settings())
    lines = [diagnosis.as_json()] if as_json else diagnosis.lines()
    print("".join(f"{line}\n" for line in lines), end="")
    raise typer.Exit(diagnosis.exit_code)


@cli.command("story")
def story_(
    id_: Annotated[
        str,
        typer.Argument(metavar="ID", help="A correlation id, a message's id, or a place, TOPIC/PARTITION/OFFSET."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
    otlp: Annotated[
        Path | None, typer.Option(help="Also write it as an OpenTelemetry trace, which collectors take at /v1/traces.")
    ] = None,
) -> None:
    """Show all that a message came from and led to: what caused what, when, where it lies and how long it waited.

    Exits with 1 if something of it is missing. An ID of long ago takes a search of all that is newer; a place does not.
    """
    _join_up()
    story = story_of(id_, load_settings())
    if otlp is not None:
        otlp.write_text(json.dumps(as_otlp(spans_of(story))))
    print(story.model_dump_json(indent=2) if as_json else "\n".join(drawn(story, sys.stdout.isatty())))
    if not story.whole:
        raise typer.Exit(1)


@cli.command("export")
def export_(
    service: str, folder: Annotated[Path, typer.Argument(metavar="DIR", help="New; it may be copied anywhere.")]
) -> None:
    """Write the topics and positions of SERVICE into files, as they are now, to `import` them elsewhere."""
    _check_known(service)
    _join_up()
    declaration = declared(f"services.{service}", "service", "SERVICE")
    with stage("", "export") as now:
        made = export(declaration, load_settings().bootstrap, folder, partial(now.advance, what="offsets"))
        parts = [part for some in made.parts.values() for part in some.values()]
        now.done = f"{sum(part.records for part in parts):,} records of {len(parts)} partitions"
    print(f"{folder} has {service}; personal text is sealed, as in the topics")


@cli.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `export` has written.")],
    until: Annotated[
        str | None, typer.Option(metavar="ID", help="Only what led to this message: its id, or TOPIC/PARTITION@OFFSET.")
    ] = None,
    next_: Annotated[bool, typer.Option("--next", help="Beside `up`: send the message that --until named.")] = False,
) -> None:
    """Fill the empty broker of `up`, which does not run, with an export: the same records at the same offsets."""
    service = service_in(folder)
    _check_known(service)
    declaration = declared(f"services.{service}", "service", "SERVICE")
    if next_:
        here = local_stack.found(local_stack.ROOT).settings["ONEFOLD_BOOTSTRAP"]
        place, offset = send_next(declaration.topology, folder, local_stack.ROOT, here)
        print(f"sent {place}@{offset}")
        return
    if local_stack.running(local_stack.ROOT):
        raise StageFailed("`up` runs, and its broker's files are to be written", "python3 dev.py down")
    cut = fill(declaration, load_topologies(), folder, local_stack.ROOT, until)
    if cut is not None:
        print(f"next     {cut.at[0]}@{cut.at[1]}: `python3 dev.py import {folder} --next` sends it")
    print(f"try      python3 dev.py up {service}")


@cli.command("console")
def console_(
    url: _WorkerUrls = None,
    port: Annotated[int | None, typer.Option(help="Of the page; by default the first free one from 4400 on.")] = None,
    mend: Annotated[
        bool | None, typer.Option(help="Let the page mend dead letters and swap versions; by default only in dev.")
    ] = None,
) -> None:
    """Show the whole system on one page, live, until Ctrl-C: flow, partitions, rows, events, findings, dead letters."""
    topologies, workers, beside_up = _watched_workers(url)
    settings = load_settings()
    controls = console.WorkersOfUp(local_stack.ROOT) if beside_up and settings.env == "dev" else None
    mends = settings.env == "dev" if mend is None else mend
    examine = partial(_examined, topologies, workers, settings)
    console.show(topologies, workers, examine, settings.bootstrap, port, controls, mends)


@cli.command("watch")
def watch_(url: _WorkerUrls = None) -> None:
    """Show flow, partitions and findings in this terminal, live, as the page of `console` does, until q."""
    topologies, workers, _ = _watched_workers(url)
    settings = load_settings()
    console.show_in_terminal(topologies, workers, partial(_examined, topologies, workers, settings), settings.bootstrap)


def _watched_workers(url: Sequence[str] | None) -> tuple[list[Topology], Workers, bool]:
    """All services of this checkout, what gives the URLs of workers that run now, and whether `up` is beside."""
    beside_up = _join_up() is not None
    topologies = load_topologies()
    named = _named(url or (), [each.service for each in topologies])
    return topologies, lambda: (_workers_of(_up_now()) if beside_up else {}) | named, beside_up


def _examined(topologies: Sequence[Topology], workers: Workers, settings: Settings) -> Diagnosis:
    return diagnose(topologies, workers(), settings)


def _up_now() -> local_stack.Record | None:
    """None also while it starts."""
    with suppress(StageFailed):
        return local_stack.running(local_stack.ROOT)
    return None


def _workers_of(found: local_stack.Record | None) -> dict[str, list[str]]:
    """The URLs of those that `up` runs, by service."""
    return {name: [str(each["url"]) for each in some] for name, some in found.services.items()} if found else {}


def _seen_workers(url: Sequence[str] | None) -> tuple[list[Topology], dict[str, list[str]]]:
    """All services of this checkout, and the URLs of workers: those of `up`, and those named."""
    workers = _workers_of(_join_up())
    topologies = load_topologies()
    return topologies, workers | _named(url or (), [each.service for each in topologies])


def _named(urls: Sequence[str], services: Sequence[str]) -> dict[str, list[str]]:
    """URLs by service, from SERVICE=URL each. Raises StageFailed for an unknown service or a missing URL."""
    workers: dict[str, list[str]] = {}
    for named in urls:
        service, _, url = named.partition("=")
        if service not in services or not url:
            raise StageFailed(f"--url {named} names no service", f"say SERVICE=URL, of one of: {', '.join(services)}")
        workers.setdefault(service, []).append(url.rstrip("/"))
    return workers


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
    _check_known(service)
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


@cli.command()
def asyncapi(service: Annotated[str | None, typer.Argument(help="By default all, in one document.")] = None) -> None:
    """Show the AsyncAPI 3 document of what services read and write on topics, as JSON."""
    if service is not None:
        _check_known(service)
    print(json.dumps(document_of(*([service] if service else found_services())), indent=2))


@cli.command("schemas")
def schemas_(
    service: Annotated[str | None, typer.Argument(help="By default all.")] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Write missing golden records, and them; without SERVICE, where a file is.")
    ] = False,
    breaking: Annotated[
        bool, typer.Option("--breaking", help="Accept what can't be read, too: nothing that matters was written yet.")
    ] = False,
    as_: Annotated[Format | None, typer.Option("--format", help="Show those of SERVICE, for others.")] = None,
) -> None:
    """Show what has changed in messages and states since it was accepted and since the last tag, and how to release it.

    Exits with 1 if they are not as accepted.
    """
    if service is not None:
        _check_known(service)
    if breaking and not accept:
        raise StageFailed("--breaking is about --accept", "add --accept, or leave it out")
    if accept and as_ is not None:
        raise StageFailed("--format only shows", "leave out --accept, or --format")
    services = [service] if service else found_services()
    if as_ is not None:
        if service is None:
            raise StageFailed("--format shows one service", f"name one of: {', '.join(services)}")
        print(shown_as(as_, service, schemas.document_of(service)))
        return
    if accept:
        chosen = [each for each in services if service or schemas.file_of(CHECKOUT, each).exists()]
        rest = (schemas.golden(CHECKOUT, each) for each in services if each not in chosen)
        for line in chain(schemas.accept(CHECKOUT, chosen, breaking), *rest):
            print(line, flush=True)
    report = schemas.compared(CHECKOUT, services)
    print("\n".join(report.lines))
    if report.differ:
        raise typer.Exit(1)


@cli.command("reprocess")
def reprocess_(
    view: Annotated[str, typer.Argument(help="SERVICE/TABLE; SERVICE alone for all its views, if it has only views.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    copies: Annotated[bool, typer.Option("--copies", help="Make the copies that feed the table again, too.")] = False,
) -> None:
    """Compute a view again from its first event, while no worker of its service runs. Nothing is sent again."""
    _join_up()
    reprocess(view, load_settings(), dry_run, copies)


@cli.command("repartition")
def repartition_(
    partitions: Annotated[int, typer.Option(min=1, help="Of each topic of all services: more than there are.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
) -> None:
    """Give all topics more partitions, while no worker of any service runs: all records are copied, twice."""
    _join_up()
    repartition(load_services(), load_settings(), partitions, dry_run)


@cli.command("settings")
def settings_() -> None:
    """Show every setting of a process with its default and what is allowed, as in docs/deployment.md."""
    print(variables())


@cli.command(context_settings=_ANY_ARGUMENTS, add_help_option=False)
def demo(context: typer.Context) -> None:
    """Order real purchases in a shop of five services, through a crash; `demo --help` shows the options."""
    _become("demo", context.args)


@cli.command("failover-drill", context_settings=_ANY_ARGUMENTS, add_help_option=False)
def failover_drill(context: typer.Context) -> None:
    """Lose a cluster under the traffic of real purchases, and go on at a second one; `--purchases` says how many."""
    _become("demo.drill", context.args)


@cli.command(context_settings=_ANY_ARGUMENTS, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Measure this checkout on this machine; `bench --help` says what can be measured."""
    _become("bench", context.args)


@cli.command(context_settings=_ANY_ARGUMENTS, add_help_option=False)
def parity(context: typer.Context) -> None:
    """Recompute live tables from their events on Spark and compare them key by key."""
    _on_spark("parity", context.args)


@cli.command(context_settings=_ANY_ARGUMENTS, add_help_option=False)
def archive(context: typer.Context) -> None:
    """Copy new events into Delta tables that outlive the topics' retention."""
    _on_spark("archive", context.args)


@cli.command(context_settings=_ANY_ARGUMENTS, add_help_option=False)
def rebuild(context: typer.Context) -> None:
    """Fill the next version of a service's tables from history, on Spark."""
    _on_spark("rebuild", context.args)


@cli.command(context_settings=_ANY_ARGUMENTS, add_help_option=False)
def backfill(context: typer.Context) -> None:
    """Import rows of CSV or Parquet into a service, as history or as commands, on Spark."""
    _on_spark("backfill", context.args)


@cli.command(context_settings=_ANY_ARGUMENTS, add_help_option=False)
def rejects(context: typer.Context) -> None:
    """Show which rows the last backfill rejected, by reason."""
    _become("pipelines", ["rejects", *context.args])


@cli.command(context_settings=_ANY_ARGUMENTS, add_help_option=False)
def insights(context: typer.Context) -> None:
    """Count revenue, retention and segments of customers on Spark."""
    _on_spark("insights", context.args)


def _on_spark(verb: str, arguments: Sequence[str]) -> None:
    try:
        if not any(re.match("--bootstrap(=|$)", each) for each in arguments):  # else it names other brokers than `up`'s
            _join_up()
    except StageFailed as failure:
        typer.echo(str(failure), err=True)
        raise typer.Exit(2) from None  # 1: done, but something is wrong in what was found
    _become("pipelines", [verb, *arguments])


def _become(package: str, arguments: Sequence[str]) -> None:
    sys.argv = [package, *arguments]
    runpy.run_module(package, run_name="__main__", alter_sys=True)


def _row(name: str, spec: TopicSpec, wrong: Sequence[Difference]) -> tuple[str, ...]:
    config = spec.config
    kept = (config["cleanup.policy"], config["retention.ms"], config["min.insync.replicas"])
    off = ", ".join(f"{each.setting} {each.found}" for each in wrong if each.topic == name)
    return name, str(spec.partitions), str(spec.replication), *kept, off or "as declared"


def _print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _join_up() -> local_stack.Record | None:
    """This checkout's `up`, if it runs and the environment names no brokers; this process then uses those of `up`."""
    if "ONEFOLD_BOOTSTRAP" in os.environ:
        return None
    found = local_stack.running(local_stack.ROOT)
    if found is not None:
        os.environ.update({name: found.settings[name] for name in _OF_UP})
    return found


def main() -> None:
    """Runs the verb; an error that the operator can resolve is shown without a traceback."""
    try:
        if (CHECKOUT / "services" / "commands.py").exists():
            cli.add_typer(import_module("services.commands").cli)
        cli(prog_name="python3 dev.py", obj=lambda: _workers_of(_join_up()))
    except (OnefoldError, StageFailed) as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(str(explain_os_error(error)))


if __name__ == "__main__":
    main()
