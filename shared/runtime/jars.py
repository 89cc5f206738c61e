"""Jars of a Maven repository, pinned by SHA-256 in a list file and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from shared.domain.errors import OnefoldError

KAFKA_JARS = Path(__file__).with_name("kafka-4.1.2.jars")
MIRROR_JARS = Path(__file__).with_name("mirror-4.1.2.jars")
TOOL_JARS = Path(__file__).with_name("tools-4.1.2.jars")
REPOSITORY_VARIABLE = "ONEFOLD_MAVEN_REPOSITORY"

_PARALLEL = 8
_ATTEMPTS = 3
_PAUSE_S = 0.5
_TIMEOUT_S = 30
_CHUNK_BYTES = 1 << 16

_Advance = Callable[[int], None]


class JarsUnavailable(OnefoldError):
    """A pinned jar could not be fetched; no partial file is left.

    Operator action: do what the message's last sentence says, then start again.
    """


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of a list file. coordinates: group:artifact:version."""

    sha256: str
    size_bytes: int
    coordinates: str

    @property
    def path(self) -> str:
        """Its path in any Maven repository, remote or local."""
        group, artifact, version = self.coordinates.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.jar"


def read_list(list_file: Path) -> list[Jar]:
    """Lines are `sha256 bytes group:artifact:version`; a line that starts with # is a comment."""
    lines = (line.split() for line in list_file.read_text().splitlines() if not line.startswith("#"))
    return [Jar(sha256, int(size), coordinates) for sha256, size, coordinates in lines]


def fetch_jars(list_file: Path) -> list[Path]:
    """Verified local files in the list's order; missing or damaged ones are fetched. Raises JarsUnavailable.

    A jar that this user's own Maven repository holds intact is copied from there.
    """
    jars, cache = read_list(list_file), user_cache() / "jars"
    missing = [jar for jar in jars if not _is_whole(cache / jar.path, jar)]
    if missing:
        _fill(cache, missing)
    return [cache / jar.path for jar in jars]


def user_cache() -> Path:
    """This user's folder for downloads: $XDG_CACHE_HOME/onefold, else ~/.cache/onefold. Raises JarsUnavailable."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache")
    return chosen.absolute() / "onefold"  # Java gets it as a path, and has another working folder


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a container may run as a user that it does not know
        raise JarsUnavailable("this user has no home folder; fix: set HOME to a folder that it may write") from None


def _is_whole(file: Path, jar: Jar) -> bool:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


def _fill(cache: Path, missing: list[Jar]) -> None:
    pool = ThreadPoolExecutor(_PARALLEL)
    try:
        # After a failure, closing the connections ends the other threads' downloads, too.
        with _progress(missing) as advance, _repository() as repository:
            for task in [pool.submit(_obtain, jar, cache / jar.path, repository, advance) for jar in missing]:
                task.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _repository() -> httpx.Client:
    # Imported here because it takes a quarter of a second and only a download needs it.
    from jgo.constants import MAVEN_CENTRAL_URL

    url = os.environ.get(REPOSITORY_VARIABLE) or MAVEN_CENTRAL_URL
    try:
        return httpx.Client(base_url=url, follow_redirects=True, timeout=_TIMEOUT_S)
    except (httpx.InvalidURL, ImportError, ValueError) as error:  # the second: a SOCKS proxy
        fix = f"correct {REPOSITORY_VARIABLE}, or the proxy in ALL_PROXY, HTTPS_PROXY or HTTP_PROXY"
        raise JarsUnavailable(f"cannot download from {url}: {error}; fix: {fix}") from error


def _obtain(jar: Jar, target: Path, repository: httpx.Client, advance: _Advance) -> None:
    local = _home() / ".m2" / "repository" / jar.path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if _is_whole(local, jar):
            with _replacing(target) as file:
                file.write(local.read_bytes())
            advance(jar.size_bytes)
        else:
            _download(jar, target, repository, advance)
    except OSError as error:
        raise JarsUnavailable(
            f"cannot write {target}: {error.strerror}. Free some space, or point XDG_CACHE_HOME at a disk that has it."
        ) from error


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """A file that becomes `target` if the block succeeds, and is deleted otherwise."""
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", delete=False) as file:
        partial = Path(file.name)
        try:
            yield file
            file.close()
            partial.replace(target)
        except BaseException:
            partial.unlink()
            raise


class _Damaged(Exception):
    """The downloaded file does not have the pinned hash."""


def _download(jar: Jar, target: Path, repository: httpx.Client, advance: _Advance) -> None:
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE_S * attempt)
        try:
            return _download_once(jar, target, repository, advance)
        except (httpx.HTTPError, _Damaged) as error:
            problem = str(error).partition("\n")[0] or type(error).__name__
    raise JarsUnavailable(
        f"cannot download {jar.coordinates} from {repository.base_url}: {problem}. "
        f"Check the network, or set {REPOSITORY_VARIABLE} to a Maven repository that can be reached."
    )


def _download_once(jar: Jar, target: Path, repository: httpx.Client, advance: _Advance) -> None:
    digest, received = hashlib.sha256(), 0
    try:
        with repository.stream("GET", jar.path) as response, _replacing(target) as file:
            response.raise_for_status()
            for chunk in response.iter_bytes(_CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                received += len(chunk)
                advance(len(chunk))
            if digest.hexdigest() != jar.sha256:
                raise _Damaged(f"its SHA-256 is {digest.hexdigest()}, not the pinned {jar.sha256}; it was deleted")
    except BaseException:
        advance(-received)
        raise


@contextmanager
def _progress(jars: list[Jar]) -> Iterator[_Advance]:
    """Counts bytes as they arrive: shows a bar in a terminal, elsewhere a first and a last line."""
    console = Console(stderr=True, highlight=False)
    label, size_bytes = f"fetching {len(jars)} jars", sum(jar.size_bytes for jar in jars)
    if console.is_terminal:
        columns = (TextColumn(label), BarColumn(), DownloadColumn(), TimeRemainingColumn(elapsed_when_finished=True))
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(label, total=size_bytes)
            yield lambda received: bar.advance(task, received)
    else:
        console.print(f"{label}, {size_bytes / 1e6:.1f} MB, into {user_cache()}")
        started = time.monotonic()
        yield lambda received: None
        console.print(f"fetched {len(jars)} jars in {time.monotonic() - started:.1f} s")
