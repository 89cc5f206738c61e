"""`up` and `down`: a stack that is kept running, and that other processes of its checkout can find."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit
from uuid import uuid4

from shared.dev.asking import ask
from shared.dev.console_process import ConsoleProcess
from shared.dev.keeper import Wanted, keep_running
from shared.dev.processes import Process, children, end, identify, listener
from shared.dev.stack import Stack
from shared.dev.stages import StageFailed, stage
from shared.dev.worker import READY_DEADLINE_S, cause_in, is_ready
from shared.runtime.checkout import CHECKOUT
from shared.runtime.settings import load_settings

ROOT = CHECKOUT / ".onefold" / "up"
_TICK_S = 0.5
_UP_GRACE_S = 60.0
_ORPHAN_GRACE_S = 10.0
_RESOLVE = "resolve what its log says"
_FIRST = "first"
_OF_EACH = {"ONEFOLD_HTTP_PORT", "ONEFOLD_INSTANCE"}  # settings that `up` gives each worker

Services = Mapping[str, list[dict[str, str | int]]]


@dataclass(frozen=True, slots=True)
class Record:
    """What `up` has started so far. up: the process of `up` itself; settings: its workers' variables."""

    up: Process
    children: tuple[Process, ...]
    settings: Mapping[str, str]
    services: Services


def running(root: Path) -> Record | None:
    """The `up` of this root that runs now. Raises StageFailed while its brokers start."""
    record = _read(root)
    if record is None or not record.up.running:
        return None
    if not record.settings:
        raise StageFailed("`up` is starting its brokers", "wait until it says so, then run again")
    return record


def up(root: Path, workers: int, brokers: int, as_json: bool, names: Sequence[str]) -> None:
    """Starts these services and stays until SIGINT, SIGTERM or SIGHUP. Raises StageFailed, BrokerFailed …

    workers: of each, also of those that `start_workers` adds.
    """
    services = dict.fromkeys(names, workers)
    if not services:
        raise StageFailed("no folder of services/ has an app.py", "add one: `new-service NAME --kind aggregate`")
    with _only_one(root):
        _end_recorded(root)
        for asked in (_resting(root), _adding(root)):
            shutil.rmtree(asked, ignore_errors=True)
        _on_end_signals(signal.default_int_handler)
        stack, console = Stack(root, services, brokers), None
        try:
            _start(stack, sys.stderr if as_json else sys.stdout)
            console = ConsoleProcess(stack.logs / "console.log")
            _write(stack)
            _announce(stack, console.url, as_json)
            keep_running(stack, _say, lambda: _write(stack), _resting(root), lambda: wanted(root), max(workers, 1))
        except KeyboardInterrupt:
            _say("stopping")
        finally:
            _on_end_signals(signal.SIG_IGN)
            if console is not None:
                console.stop()
            stack.stop()
            _file(root).unlink(missing_ok=True)


def down(root: Path) -> bool:
    """Ends what `up` of this root started, even if `up` itself was killed. False when nothing ran."""
    record = _read(root)
    ended = end([record.up], _UP_GRACE_S) if record else []
    return _end_recorded(root) or bool(ended)


def stop_workers(root: Path, service: str) -> list[str]:
    """Has `up` stop the workers of `service` until `start_workers`; returns their URLs. Raises StageFailed."""
    urls = _urls(_running(root, service), service)
    _resting(root, service).parent.mkdir(exist_ok=True)
    _resting(root, service).touch()
    _await(lambda: not _urls(_running(root, service), service), root, f"{service} does not stop", service)
    return urls


def stop_worker(root: Path, service: str, url: str) -> str:
    """Ends one worker on this machine, of `up` until `start_workers`; returns its URL. Raises StageFailed."""
    try:
        kept, port = running(root), urlsplit(url).port
    except ValueError as error:
        raise StageFailed(f"{url} is no address: {error}", "name one as `status` shows it") from None
    if kept is not None and url in _urls(kept, service):
        _resting(root).mkdir(exist_ok=True)
        _resting(root, f"{service}.{port}").touch()
        _await(lambda: url not in _urls(found(root), service), root, f"{url} does not stop", service)
        return url
    process = listener(urlsplit(url).hostname or "", port or 0)
    if process is None:
        raise StageFailed(
            f"nobody on this machine listens at {url}", "end it where it runs: SIGTERM, or one replica less"
        )
    if (other := ask(f"{url}/cluster")["service"]) != service:
        raise StageFailed(f"{url} is a worker of {other}", f"`stop {other}`, or name one of {service}")
    end([process], _UP_GRACE_S)
    return url


def start_workers(root: Path, service: str) -> list[str]:
    """Has `up` run the workers of `service`; returns their URLs once all are ready.

    Raises StageFailed, at once if one ends before that.
    """
    begins = _ends_of_logs(root, service)
    before = _ended(found(root), service)  # `up` starts these again, perhaps with what was mended
    if service not in found(root).services:
        _ask_for(root, service, _FIRST)
    alone = [*_resting(root).glob(f"{service}.*")]
    for resting in (_resting(root, service), *alone):
        resting.unlink(missing_ok=True)

    def ready() -> bool:
        now = found(root)
        if _ended(now, service) - before:
            problem = f"{service} ended before it was ready{_causes(root, service, begins)}"
            raise StageFailed(problem, _RESOLVE, root / "logs")
        urls = _urls(now, service)
        back = {f"{service}.{urlsplit(url).port}" for url in urls}
        return bool(urls) and back.issuperset(each.name for each in alone) and all(is_ready(url) for url in urls)

    _await(ready, root, f"{service} is not ready", service)
    return _urls(found(root), service)


def add_worker(root: Path, service: str) -> None:
    """Has `up` start one more worker of `service`, and keep it running; waits for neither. Raises StageFailed."""
    if not _urls(_running(root, service), service):
        raise StageFailed(f"{service} is stopped", f"`python3 dev.py start {service}`")
    _ask_for(root, service, str(uuid4()))


def _ask_for(root: Path, service: str, name: str) -> None:
    _adding(root).mkdir(exist_ok=True)
    (_adding(root) / f"{service}.{name}").touch()


def _ended(record: Record, service: str) -> set[int]:
    """The processes of its workers that run no more."""
    pids = {worker["pid"] for worker in record.services.get(service, ())}
    return {child.pid for child in record.children if child.pid in pids and not child.running}


def check_settings(record: Record) -> None:
    """Raises StageFailed for a setting of this process that the workers of `up` would not have."""
    given = {name.upper() for name in os.environ} - _OF_EACH
    here = {name: value for name, value in load_settings().environment().items() if name in given}
    if ignored := ", ".join(sorted(name for name, value in here.items() if record.settings.get(name) != value)):
        fix = f"unset {ignored}, or restart `up` with it; `worker SERVICE` runs one worker with settings of its own"
        raise StageFailed(f"the workers of `up` have the settings of `up`, and not {ignored} from here", fix)


def found(root: Path) -> Record:
    """The `up` that runs. Raises StageFailed when none does."""
    record = running(root)
    if record is None:
        raise StageFailed("`up` of this checkout does not run", "`python3 dev.py up`, or use your own supervisor")
    return record


def _running(root: Path, service: str) -> Record:
    record = found(root)
    if service not in record.services:
        raise StageFailed(f"`up` runs no {service}", f"name one that it runs: {', '.join(record.services) or 'none'}")
    return record


def _urls(record: Record, service: str) -> list[str]:
    return [str(worker["url"]) for worker in record.services.get(service, ())]


def _await(condition: Callable[[], bool], root: Path, problem: str, service: str) -> None:
    deadline = time.monotonic() + READY_DEADLINE_S
    begins = _ends_of_logs(root, service)
    while not condition():
        if time.monotonic() > deadline:
            late = f"{problem} after {READY_DEADLINE_S:.0f} s"
            raise StageFailed(late + _causes(root, service, begins), _RESOLVE, root / "logs")
        time.sleep(_TICK_S)


def _causes(root: Path, service: str, begins: Mapping[Path, int]) -> str:
    """What its workers' logs say behind where they began; empty if nothing."""
    causes = dict.fromkeys(cause_in(log, begins.get(log, 0)) for log in _ends_of_logs(root, service))
    return "".join(f": {cause}" for cause in causes if cause)


def _ends_of_logs(root: Path, service: str) -> dict[Path, int]:
    return {log: log.stat().st_size for log in sorted((root / "logs").glob(f"{service}-*.log"))}


def _start(stack: Stack, out: TextIO) -> None:
    _write(stack)
    with stage("[1/3]", "brokers", out) as now:
        stack.start_brokers()
        now.done = stack.bootstrap
    _write(stack)
    with stage("[2/3]", "topics", out) as now:
        now.done = f"{len(stack.provision())} created, all as declared"
    with stage("[3/3]", "workers", out) as now:

        def progress(ready: int, total: int) -> None:
            _write(stack)
            now.progress(ready, total, "ready")

        try:
            stack.start_workers(progress)
        except StageFailed as failure:
            alone = "`up --workers 0` runs the brokers alone, for a `rebuild` or `reprocess`"
            raise StageFailed(failure.problem, f"{failure.fix}; {alone}", failure.log) from None
        stack.spawn_runners()
        now.done = f"{len(stack.workers)} ready"


def _announce(stack: Stack, console: str, as_json: bool) -> None:
    if as_json:
        running_now = {"bootstrap": stack.bootstrap, "services": _services(stack), "console": console}
        print(json.dumps(running_now), flush=True)
        return
    print(f"look             {console}")
    for worker in stack.workers:
        print(f"{worker.name:<16} {worker.url}/docs")
    for runner in stack.runners:
        print(f"{runner.name:<16} makes its calls outside")
    if stack.workers:
        print(f"try              curl {stack.workers[0].url}/cluster")
    print(f"logs             {stack.logs}")
    print("Ctrl-C stops it; its data stay", flush=True)


@contextmanager
def _only_one(root: Path) -> Iterator[None]:
    """Holds this root for one `up`. Raises StageFailed naming the one that has it."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StageFailed(f"`up` runs already{_who(root)}", "use it, or end it with `down`") from None
        yield


def _who(root: Path) -> str:
    record = _read(root)
    if record is None:
        return ""
    urls = [str(worker["url"]) for workers in record.services.values() for worker in workers]
    return f": process {record.up.pid}, {' '.join(urls) or 'starting'}"


def _write(stack: Stack) -> None:
    settings = stack.settings.environment() if stack.bootstrap else {}
    record = Record(identify(os.getpid()), tuple(children()), settings, _services(stack))
    new = _file(stack.root).with_suffix(".new")
    new.touch(mode=0o600)  # it has passwords
    new.write_text(json.dumps(asdict(record), indent=2) + "\n")
    new.replace(_file(stack.root))


def _read(root: Path) -> Record | None:
    """None where nothing was started. Raises StageFailed for a record that cannot be read."""
    try:
        found = json.loads(_file(root).read_text())
        started = tuple(Process(**child) for child in found["children"])
        return Record(Process(**found["up"]), started, found["settings"], found["services"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise StageFailed(f"{_file(root)} is damaged", "end `up` with Ctrl-C if it runs, then delete it") from error


def _file(root: Path) -> Path:
    return root / "running.json"


def _resting(root: Path, service: str = "") -> Path:
    return root / "resting" / service


def _adding(root: Path) -> Path:
    """A folder, with a file for each `Wanted`: the service's name, a dot, and `first` or nobody else's name."""
    return root / "adding"


def wanted(root: Path) -> Iterator[Wanted]:
    """What `start_workers` and `add_worker` asked for; each is given once."""
    for file in sorted(_adding(root).glob("*.*")):
        file.unlink()
        service, _, name = file.name.partition(".")
        yield Wanted(service, name == _FIRST)


def _services(stack: Stack) -> Services:
    """The running workers, by service; a stopped service has none."""
    names = dict.fromkeys(worker.service for worker in stack.workers)
    return {
        name: [{"url": worker.url, "pid": worker.pid} for worker in stack.workers_of(name) if worker.running]
        for name in names
    }


def _end_recorded(root: Path) -> bool:
    """Ends what a killed `up` left behind. False when there was nothing."""
    record = _read(root)
    ended = end(record.children, _ORPHAN_GRACE_S) if record else []
    _file(root).unlink(missing_ok=True)
    return bool(ended)


def _on_end_signals(action: signal._HANDLER) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a shell's background command, ignores it
            signal.signal(number, action)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
