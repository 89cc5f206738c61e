"""Personal texts with their person's key, and without it."""

from __future__ import annotations

import asyncio
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from shared.domain.errors import NotReady
from shared.domain.message import Command
from shared.domain.personal import Personal
from shared.privacy.persons import Forgotten, PersonKeys, check_person_keys
from shared.privacy.sealing import MAX_CHARS, Sealer, _Secret
from shared.runtime.clock import elapsed_s
from shared.runtime.settings import Settings, SettingsError
from tests.unit.http.test_protection import PROD

pytestmark = pytest.mark.anyio


class Register(Command):
    TYPE = "customer.register"

    name: Personal = None
    note: str = ""


def register(**body: Any) -> Register:
    """As a request's body has it: not encrypted."""
    return Register(**body)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'keys' / 'person-keys.sqlite3'}"


@pytest.fixture
def sealer(url: str) -> Sealer:
    return Sealer(PersonKeys(url))


async def test_only_personal_fields_are_encrypted_and_come_back_in_any_process(sealer: Sealer, url: str) -> None:
    sealed = await sealer.sealed(register(name="Zoë", note="by post"), "customers:c-1")
    assert sealed.note == "by post"
    assert "Zoë" not in sealed.model_dump_json()
    assert await Sealer(PersonKeys(url)).unsealed([sealed, Register()]) == [
        register(name="Zoë", note="by post"),
        Register(),
    ]


async def test_a_repeat_is_the_same_command_and_another_person_s_text_another(sealer: Sealer) -> None:
    ann, again, bob = [await sealer.sealed(register(name="Kim"), f"customers:{each}") for each in ("ann", "ann", "bob")]
    assert ann == again != bob


async def test_a_text_that_looks_encrypted_is_encrypted_so_nobody_reads_another_s_by_it(sealer: Sealer) -> None:
    secret = (await sealer.sealed(register(name="Ann"), "customers:ann")).name
    stolen = await sealer.sealed(register(name=secret), "customers:thief")
    assert await sealer.unsealed([stolen]) == [register(name=secret)]


async def test_a_forgotten_person_is_unreadable_at_once_in_a_new_process_and_stays_so(sealer: Sealer, url: str) -> None:
    sealed = await sealer.sealed(register(name="Ann", note="kept"), "customers:ann")
    keys = PersonKeys(url)
    assert (keys.forget("customers:ann"), keys.forget("customers:ann")) == (True, False)
    assert await Sealer(keys).unsealed([sealed]) == [register(name=None, note="kept")]
    with pytest.raises(Forgotten, match="customers:ann was forgotten"):
        await sealer.sealed(register(name="Ann"), "customers:ann")


async def test_who_was_never_known_can_be_forgotten_before_the_first_text_arrives(sealer: Sealer, url: str) -> None:
    assert not PersonKeys(url).forget("customers:late")
    with pytest.raises(Forgotten):
        await sealer.sealed(register(name="Lee"), "customers:late")


async def test_a_running_process_forgets_within_seconds(
    sealer: Sealer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = await sealer.sealed(register(name="Ann"), "customers:ann")
    assert await sealer.unsealed([sealed]) == [register(name="Ann")]
    PersonKeys(url).forget("customers:ann")
    monkeypatch.setattr("shared.privacy.sealing.KEPT_S", 0)
    assert await sealer.unsealed([sealed]) == [Register()]


def test_many_at_once_make_one_key(url: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: PersonKeys(url).of_or_new("customers:ann"), range(40)))
    assert len(set(made)) == 1


def test_keys_of_more_than_a_query_can_name_are_found(url: str) -> None:
    keys = PersonKeys(url)
    made = {person: keys.of_or_new(person) for person in ("customers:0", "customers:299999")}
    assert keys.of([f"customers:{number}" for number in range(300_000)]) == made


async def test_many_texts_are_decrypted_beside_the_event_loop(sealer: Sealer, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = [await sealer.sealed(register(name=each), f"customers:{each}") for each in ("ann", "bob", "cid")]
    monkeypatch.setattr("shared.privacy.sealing.MANY", 2)
    threads: list[Thread] = []
    decrypt = _Secret.text

    def text(secret: _Secret, key: bytes | None) -> str | None:
        threads.append(current_thread())
        return decrypt(secret, key)

    monkeypatch.setattr(_Secret, "text", text)
    plain = [register(name=each) for each in ("ann", "bob", "cid")]
    assert await sealer.unsealed(sealed) == plain
    assert await sealer.unsealed(sealed[:2]) == plain[:2]
    assert [each is main_thread() for each in threads] == [False, False, False, True, True]


async def test_texts_whose_keys_are_elsewhere_are_not_shown_and_the_log_says_why(
    sealer: Sealer, tmp_path: Path
) -> None:
    sealed = await sealer.sealed(register(name="Ann"), "customers:ann")
    other = Sealer(PersonKeys(f"sqlite:///{tmp_path / 'other.sqlite3'}"))
    with structlog.testing.capture_logs() as lines:
        assert await other.unsealed([sealed]) == [Register()]
    assert [(line["persons"], "ONEFOLD_PERSON_KEYS" in line["fix"]) for line in lines] == [(["customers:ann"], True)]


async def test_a_database_that_does_not_answer_is_a_reason_to_try_again(tmp_path: Path, sealer: Sealer) -> None:
    sealed = await sealer.sealed(register(name="Ann"), "customers:ann")
    (tmp_path / "broken.sqlite3").write_bytes(b"not a database" * 100)
    broken = Sealer(PersonKeys(f"sqlite:///{tmp_path / 'broken.sqlite3'}"))
    with pytest.raises(NotReady, match="the database of personal keys does not answer"):
        await broken.unsealed([sealed])
    with pytest.raises(NotReady):
        await broken.sealed(register(name="Ann"), "customers:ann")


async def test_a_database_that_hangs_takes_no_thread_of_anything_else(
    sealer: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed, hangs = await sealer.sealed(register(name="Ann"), "customers:ann"), Event()
    monkeypatch.setattr("shared.privacy.sealing.ANSWER_S", 0.1)
    monkeypatch.setattr(PersonKeys, "of", lambda *_: {"customers:ann": None} if hangs.wait(9) else {})
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    try:
        async with asyncio.timeout(5):
            asked = [sealer.unsealed([sealed]) for _ in range(9)]
            answers = asyncio.gather(*asked, return_exceptions=True)
            await asyncio.sleep(0)  # they have begun
            assert await asyncio.to_thread(lambda: "free") == "free"
            assert {*map(type, await answers)} == {NotReady}
    finally:
        hangs.set()


async def test_a_database_that_has_not_answered_is_left_alone_for_a_moment(
    sealer: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it does not keep each of many waiting, one after another."""
    hangs, asked = Event(), list[str]()

    def of_or_new(_: PersonKeys, person: str) -> bytes:
        asked.append(person)
        hangs.wait(9)
        return bytes(64)

    monkeypatch.setattr("shared.privacy.sealing.ANSWER_S", 0.1)
    monkeypatch.setattr("shared.privacy.sealing.PAUSE_S", 30.0)
    monkeypatch.setattr(PersonKeys, "of_or_new", of_or_new)
    try:
        for person in ("ann", "bob", "cid"):
            with pytest.raises(NotReady):
                await sealer.sealed(register(name="x"), person)
        assert asked == ["ann"]
        now = elapsed_s()
        monkeypatch.setattr("shared.privacy.sealing.elapsed_s", lambda: now + 31.0)
        monkeypatch.setattr("shared.privacy.sealing.ANSWER_S", 30.0)
        hangs.set()
        await sealer.sealed(register(name="x"), "dan")
    finally:
        hangs.set()


async def test_a_text_too_long_is_refused_by_name(sealer: Sealer) -> None:
    with pytest.raises(ValueError, match="name: a personal text has at most 1000 characters, this one 1001"):
        await sealer.sealed(register(name="x" * (MAX_CHARS + 1)), "customers:ann")


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "nosuchdatabase://host/name",
        "mysql+nosuchdriver://me:hidden@host/name",
        "postgresql://me:p@hidden:hidden@host/name",
        "sqlite:///file?timeout=hidden",
    ],
)
def test_a_url_that_cannot_work_is_refused_at_the_start_without_its_password(url: str) -> None:
    with pytest.raises(
        SettingsError, match=r"ONEFOLD_PERSON_KEYS cannot be used: .*; fix: give SQLAlchemy's"
    ) as refusal:
        check_person_keys(Settings(person_keys=SecretStr(url)))
    assert "hid" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize("url", ["sqlite:////keys.sqlite3", "sqlite+pysqlite:///:memory:", "sqlite://"])
def test_in_production_a_file_of_one_machine_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="ONEFOLD_PERSON_KEYS is SQLite, which other machines do not share; fix: "):
        check_person_keys(PROD.model_copy(update={"person_keys": SecretStr(url)}))
