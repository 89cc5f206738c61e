#!/usr/bin/env python3
"""The front door: `python3 dev.py demo` on a fresh clone shows everything; `python3 dev.py test` checks it.

Standard library only. Makes `.venv` from the lock files when it is missing or outdated, then hands over.
"""

import os
import sys

if sys.version_info < (3, 11) or os.name != "posix":
    sys.exit(  # before the imports below, which an older Python cannot read
        "Onefold needs Python 3.11 or newer on Linux or macOS; this is Python %d.%d (%s).\n"
        "fix: name a newer one, such as `python3.12 dev.py demo`"
        % (sys.version_info[0], sys.version_info[1], sys.executable)
    )

import locale
import signal
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from shared.dev import locks
from shared.dev.environment import Checkout, ensure, explain_os_error
from shared.dev.peer_secret import with_peer_secret
from shared.dev.stages import StageFailed

USAGE = """\
python3 dev.py VERB [ARGUMENTS]

  demo     a shop of five services and 69,659 real purchases; a worker is killed midway; Ctrl-C ends it
  test     every check, then every test on a real broker; arguments go to pytest, --long adds the slow ones,
           --compose runs those in containers instead
  check    format, lint, types, doors, schemas and the fast tests that need no broker; --accept writes schemas and
           golden records first
  verify   the same without the tests, as one verdict: for each check what failed, and the fix; --json,
           --tests adds the tests of `check`
  schemas  what has changed in messages and states, and in which order to release it; --accept,
           --format json|avro|proto
  bench    measurements, such as `bench engine --json FILE`
  parity   every live table against the fold of its events, on Spark
  archive  new events into Delta tables, such as `archive DIR SERVICE --verify`
  rebuild  the next version of a service's tables from history, on Spark
  backfill history of another system, from CSV or Parquet, as events, on Spark
  insights revenue, retention and segments of customers, counted on Spark, with pictures
  up [SERVICE...]
           a broker and workers that keep running; --workers N, --brokers 1|3, --json
  down     stops what `up` of this checkout started
  stop SERVICE, start SERVICE
           the workers of one service that `up` keeps running
  console  the whole system on one page, live; `up` starts it, too
  watch    the same in a terminal: flow, partitions, findings
  status   who owns what, how far behind, what is parked, what would be lost
  doctor   what is wrong, why it matters, and the command that mends it; --json
  story    what a message came from and led to: `story ID`; --json, --otlp FILE
  forget SERVICE ID
           drops the key of a person's data, which nobody can read then
  dead-letters list|show|retry|discard
           what the services could not handle
  reprocess SERVICE/TABLE
           a view, computed again from its first event
  repartition --partitions N
           more partitions for all topics, while all services stand still; --dry-run
  kubernetes DIR
           a Kustomize base, made from the topologies: workers, services, probes, budgets, jobs, scaling by lag
  mirror BROKERS
           copies commands, events, timers and dead letters to a second cluster, for `rebuild SERVICE --mirrored`
  failover-drill
           loses a cluster under traffic and goes on at a second one; --purchases N
  new-service NAME --kind aggregate|process|projection|claim|effect
           a service and its tests, of a small pattern; --on EVENT; or a copy, --like SERVICE
  new-project DIR NAME
           a project of your own: the engine with its tests, and no example
  remove-demo
           removes the shop and what demonstrates it; accounts stays, to be copied; --all removes it, too
  rename NAME
           another name for the project: distribution, Compose, images, headers, settings, metrics; --dry-run
  upgrade [TAG]
           a newer release of the template, merged with yours on a branch; --from PATH|URL
  whose    the template's files that you have edited
  lock     resolves pyproject.toml into requirements/*.lock (needs uv)

Any other verb goes to the project's own command line; `python3 dev.py cli --help` lists all.
"""
CHECKS = ("check", "test", "verify")
# the locks that .venv must hold for a verb; the worker's for any other
LOCKS = {
    "archive": ["worker", "pipelines"],
    "backfill": ["worker", "pipelines"],
    "bench": ["worker", "pipelines"],
    "check": ["dev", "pipelines"],
    "new-service": ["dev"],
    "failover-drill": ["worker", "pipelines"],
    "insights": ["worker", "pipelines"],
    "kubernetes": ["dev"],
    "parity": ["worker", "pipelines"],
    "rebuild": ["worker", "pipelines"],
    "rename": ["dev"],
    "test": ["dev", "pipelines"],
    "upgrade": ["dev"],
    "verify": ["dev", "pipelines"],
    "watch": ["dev"],
    "whose": ["dev"],
}


def main(arguments: list[str]) -> None:
    """Runs the verb, or becomes the process that does."""
    if arguments[:1] == ["cli"] and arguments[1:] and not arguments[1].startswith("-"):
        arguments = arguments[1:]  # needs the same locks as the verb alone
    verb = arguments[0] if arguments else "help"
    if verb in ("help", "-h", "--help"):
        print(USAGE, end="", flush=True)
        return
    checkout = Checkout(Path(__file__).resolve().parent)
    if verb == "lock":
        locks.lock(checkout.root, arguments[1:])
        return
    python = ensure(checkout, LOCKS.get(verb, ["worker"]))
    command = [str(python), "-P", "-m", *module_and_arguments(arguments)]
    environment = {"PYTHONUTF8": "1", **os.environ, **utf8_locale()}
    environment.pop("PYTHONPATH", None)  # of another checkout, its `shared` would be run in place of this one's
    if verb not in CHECKS:  # tests say which secret they need
        environment = with_peer_secret(environment, checkout.state)
    os.execve(command[0], command, environment)


def utf8_locale() -> dict[str, str]:
    """Variables to set: in a locale of fewer characters, Java finds no file whose path has others."""
    with suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "")
    return {} if locale.nl_langinfo(locale.CODESET).upper() == "UTF-8" else {"LC_ALL": "C.UTF-8"}


def module_and_arguments(arguments: list[str]) -> list[str]:
    """The arguments of `.venv/bin/python -m` for a verb."""
    if arguments[0] in CHECKS:
        return ["shared.dev.checks", *arguments]
    return ["shared.dev.cli", *(arguments[1:] if arguments[0] == "cli" else arguments)]


def give_up(why: StageFailed) -> NoReturn:
    print(why, file=sys.stderr)
    sys.exit(2)  # 1 is for what was done and found something wrong


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        main(sys.argv[1:])
    except StageFailed as failure:
        give_up(failure)
    except BrokenPipeError:
        os._exit(128 + signal.SIGPIPE)  # `| head` has read enough
    except OSError as error:
        give_up(explain_os_error(error))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
