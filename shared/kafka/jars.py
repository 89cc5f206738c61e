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

REPOSITORY_VARIABLE = "ONEFOLD_MAVEN_REPOSITORY"
KAFKA_JARS = Path(__file__).with_name("kafka-4.1.2.jars")

_PARALLEL = 8
_ATTEMPTS = 3
_PAUSE_S = 0.5
_CHUNK_BYTES = 1 << 16

Advance = Callable[[int], None]


class JarsUnavailable(Exception):
    """A pinned jar could not be had; nothing half-written is left.

    Operator action: do what the message's last sentence says and start again.
    """


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of a list file."""

    sha256: str
    size_bytes: int
    coordinates: str

    @property
    def path(self) -> str:
        """Where the jar lies in any Maven repository, remote or local."""
        group, artifact, version = self.coordinates.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.jar"


def read_list(list_file: Path) -> list[Jar]:
    """The jars of a list file: one `sha256 bytes group:artifact:version` a line, `#` starts a comment line."""
    lines = [line.split() for line in list_file.read_text().splitlines() if line and not line.startswith("#")]
    return [Jar(sha256, int(size), coordinates) for sha256, size, coordinates in lines]


def fetch_jars(list_file: Path) -> list[Path]:
    """Verified local files of every jar in the list, in its order; what is missing or damaged is downloaded.

    Raises JarsUnavailable.
    """
    jars, cache = read_list(list_file), user_cache() / "jars"
    with ThreadPoolExecutor(_PARALLEL) as pool:
        whole = pool.map(lambda jar: _is_whole(cache / jar.path, jar), jars)
        missing = [jar for jar, found in zip(jars, whole, strict=True) if not found]
    if missing:
        _fill(cache, missing)
    return [cache / jar.path for jar in jars]


def user_cache() -> Path:
    """This user's folder for downloads: $XDG_CACHE_HOME/onefold, else ~/.cache/onefold."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onefold"


def _is_whole(file: Path, jar: Jar) -> bool:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == jar.sha256
    except FileNotFoundError:
        return False


def _fill(cache: Path, missing: list[Jar]) -> None:
    size_bytes = sum(jar.size_bytes for jar in missing)
    with _repository() as repository, _progress(len(missing), size_bytes) as advance:
        pool = ThreadPoolExecutor(_PARALLEL)
        try:
            for done in [pool.submit(_obtain, jar, cache / jar.path, repository, advance) for jar in missing]:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _repository() -> httpx.Client:
    # Imported here: it takes a quarter of a second, and only a download needs it.
    from jgo.constants import MAVEN_CENTRAL_URL

    url = os.environ.get(REPOSITORY_VARIABLE) or MAVEN_CENTRAL_URL
    return httpx.Client(base_url=url, follow_redirects=True, timeout=30)


def _obtain(jar: Jar, target: Path, repository: httpx.Client, advance: Advance) -> None:
    local = Path.home() / ".m2" / "repository" / jar.path
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
    """A file that becomes `target` when the block ends well and leaves no trace otherwise."""
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", delete=False) as file:
        try:
            yield file
            file.close()
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise


def _download(jar: Jar, target: Path, repository: httpx.Client, advance: Advance) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _download_once(jar, target, repository, advance)
        except (httpx.HTTPError, _Damaged) as error:
            problem = str(error) or type(error).__name__
            time.sleep(_PAUSE_S * attempt)
    raise JarsUnavailable(
        f"cannot download {jar.coordinates} from {repository.base_url}: {problem}. "
        f"Check the network, or set {REPOSITORY_VARIABLE} to a Maven repository that can be reached."
    )


def _download_once(jar: Jar, target: Path, repository: httpx.Client, advance: Advance) -> None:
    digest, received = hashlib.sha256(), 0
    try:
        with _replacing(target) as file, repository.stream("GET", jar.path) as response:
            response.raise_for_status()
            for chunk in response.iter_bytes(_CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                received += len(chunk)
                advance(len(chunk))
            if digest.hexdigest() != jar.sha256:
                raise _Damaged(f"its SHA-256 is {digest.hexdigest()}, pinned is {jar.sha256}; deleted")
    except BaseException:
        advance(-received)
        raise


class _Damaged(Exception):
    """What came is not what is pinned."""


@contextmanager
def _progress(jars: int, size_bytes: int) -> Iterator[Advance]:
    """Reports bytes as they come: a bar in a terminal, a first and a last line elsewhere."""
    console, label = Console(stderr=True, highlight=False), f"fetching {jars} jars"
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=size_bytes)
        if not console.is_terminal:
            console.print(f"{label}, {size_bytes / 1e6:.0f} MB")
        started = time.monotonic()
        yield lambda received: bar.advance(task, received)
    if not console.is_terminal:
        console.print(f"fetched {jars} jars in {time.monotonic() - started:.0f} s")
