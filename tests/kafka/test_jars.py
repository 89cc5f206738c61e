"""Jars come whole or not at all, whatever the repository, the cache or the disk does."""

from __future__ import annotations

import hashlib
import pwd
import resource
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shared.runtime.jars import (
    KAFKA_JARS,
    MIRROR_JARS,
    REPOSITORY_VARIABLE,
    TOOL_JARS,
    JarsUnavailable,
    fetch_jars,
    read_list,
    user_cache,
)

LIBRARY = "org/example/library/1.0/library-1.0.jar"
SERVER = "org/example/server/2.1/server-2.1.jar"
CONTENT = {LIBRARY: b"library " * 40_000, SERVER: b"server"}


class Repository(ThreadingHTTPServer):
    """A Maven repository on loopback. refusals: how many more requests for a path get a 503."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(CONTENT)
        self.refusals: Counter[str] = Counter()
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/maven"


class _Handler(BaseHTTPRequestHandler):
    server: Repository

    def do_GET(self) -> None:
        path = self.path.removeprefix("/maven/")
        self.server.requests.append(path)
        refused = self.server.refusals[path] > 0
        self.server.refusals[path] -= refused
        body = b"" if refused else self.server.files.get(path)
        self.send_response(503 if refused else 404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    with Repository() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        monkeypatch.setenv(REPOSITORY_VARIABLE, server.url)
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("shared.runtime.jars._PAUSE_S", 0.0)
    return tmp_path / "cache"


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    list_file = tmp_path / "two.jars"
    lines = [
        f"{hashlib.sha256(body).hexdigest()}  {len(body)}  {coordinates}\n"
        for body, coordinates in zip(
            CONTENT.values(), ("org.example:library:1.0", "org.example:server:2.1"), strict=True
        )
    ]
    list_file.write_text("# a comment\n" + "".join(lines))
    return list_file


def files(folder: Path) -> set[str]:
    return {file.name for file in folder.rglob("*") if file.is_file()}


def test_the_jars_come_in_the_order_of_the_list(repository: Repository, pins: Path) -> None:
    jars = fetch_jars(pins)
    assert [jar.name for jar in jars] == ["library-1.0.jar", "server-2.1.jar"]
    assert [jar.read_bytes() for jar in jars] == list(CONTENT.values())


def test_a_second_run_needs_no_network(repository: Repository, pins: Path) -> None:
    fetch_jars(pins)
    requests = len(repository.requests)
    fetch_jars(pins)
    assert len(repository.requests) == requests


@pytest.mark.parametrize("damage", [b"", b"library", b"Library " * 40_000], ids=["empty", "truncated", "altered"])
def test_a_damaged_jar_in_the_cache_is_fetched_again(repository: Repository, pins: Path, damage: bytes) -> None:
    library, _ = fetch_jars(pins)
    library.write_bytes(damage)
    fetch_jars(pins)
    assert library.read_bytes() == CONTENT[LIBRARY]
    assert repository.requests.count(SERVER) == 1


def test_a_corrupted_download_is_reported_and_deleted(repository: Repository, pins: Path, cache: Path) -> None:
    repository.files[LIBRARY] = b"a login page"
    with pytest.raises(JarsUnavailable, match=r"org\.example:library:1\.0 .*SHA-256 .* not the pinned .*deleted"):
        fetch_jars(pins)
    assert files(cache) <= {"server-2.1.jar"}
    repository.files[LIBRARY] = CONTENT[LIBRARY]
    assert fetch_jars(pins)[0].read_bytes() == CONTENT[LIBRARY]


def test_a_passing_failure_of_the_repository_is_tried_again(repository: Repository, pins: Path) -> None:
    repository.refusals[LIBRARY] = 2
    assert fetch_jars(pins)[0].read_bytes() == CONTENT[LIBRARY]


def test_a_jar_the_repository_lacks_is_named(repository: Repository, pins: Path) -> None:
    del repository.files[SERVER]
    with pytest.raises(JarsUnavailable, match=rf"org\.example:server:2\.1 .*404.*{REPOSITORY_VARIABLE}"):
        fetch_jars(pins)


def test_without_a_network_the_message_says_what_to_do(pins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REPOSITORY_VARIABLE, "http://127.0.0.1:9")
    with pytest.raises(JarsUnavailable, match=f"Check the network, or set {REPOSITORY_VARIABLE}"):
        fetch_jars(pins)


@pytest.mark.parametrize(
    ("variable", "value"),
    [(REPOSITORY_VARIABLE, "http://mirror:80OO"), ("ALL_PROXY", "socks5://proxy:1080"), ("HTTPS_PROXY", "telnet://p")],
)
def test_an_address_that_cannot_be_used_is_named(
    pins: Path, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(JarsUnavailable, match=f"fix: correct .*{variable}"):
        fetch_jars(pins)


def test_a_user_without_a_home_is_told_to_set_one(pins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(JarsUnavailable, match="no home folder; fix: set HOME"):
        fetch_jars(pins)


def test_the_cache_has_an_absolute_path_for_java_runs_in_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert user_cache() == Path.cwd() / "cache" / "onefold"


def test_a_jar_in_the_local_maven_repository_is_used_if_unaltered(
    repository: Repository, pins: Path, tmp_path: Path
) -> None:
    for path, body in ((LIBRARY, CONTENT[LIBRARY]), (SERVER, b"altered")):
        local = tmp_path / "home" / ".m2" / "repository" / path
        local.parent.mkdir(parents=True)
        local.write_bytes(body)
    assert [jar.read_bytes() for jar in fetch_jars(pins)] == list(CONTENT.values())
    assert repository.requests == [SERVER]


def test_two_fetches_at_once_do_each_other_no_harm(repository: Repository, pins: Path, cache: Path) -> None:
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(fetch_jars, [pins] * 2))
    assert both[0] == both[1]
    assert files(cache) == {"library-1.0.jar", "server-2.1.jar"}


def test_a_full_disk_is_reported_and_leaves_no_partial_jar(repository: Repository, pins: Path, cache: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, pathlib, shared.runtime.jars as j; j.fetch_jars(pathlib.Path(sys.argv[1]))",
            pins,
        ],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        capture_output=True,
        text=True,
    )
    assert "JarsUnavailable: cannot write " in done.stderr
    assert "library-1.0.jar: File too large. Free some space" in done.stderr
    assert files(cache) <= {"server-2.1.jar"}


def test_every_pin_of_kafka_is_one_jar() -> None:
    jars = read_list(KAFKA_JARS)
    assert len({jar.path for jar in jars}) == len({jar.sha256 for jar in jars}) == len(jars) == 46
    assert sum(jar.size_bytes for jar in jars) == 44_516_371


def test_the_mirror_adds_jars_to_the_broker_s_own() -> None:
    own, more = read_list(KAFKA_JARS), read_list(MIRROR_JARS)
    assert len({jar.path for jar in own + more}) == len(own + more) == 94
    assert sum(jar.size_bytes for jar in more) == 11_430_872


def test_kafka_s_tools_add_one_jar() -> None:
    (tools,) = read_list(TOOL_JARS)
    assert tools not in read_list(KAFKA_JARS)
