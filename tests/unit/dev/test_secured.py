"""The secrets for the containers of compose.secure.yml are made once, in a folder that only its owner can enter."""

from __future__ import annotations

import errno
import os
import ssl
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation
from typer.testing import CliRunner

from shared.dev import cli
from shared.dev.authority import Authority
from shared.dev.issuer import DevIssuer
from shared.dev.secured import make_secrets
from shared.dev.stages import StageFailed
from shared.dev.verbs import brokers, deploying
from shared.operations.acls import create_principals, rules_of
from shared.operations.provision import ProvisionError
from shared.runtime.checkout import CHECKOUT, found_services
from shared.runtime.settings import load_settings
from shared.topology.declaration import Service
from tests.accounts.topology import TOPOLOGY


def test_existing_secrets_stay_and_a_new_service_gets_its_own_password(tmp_path: Path) -> None:
    made = {file: file.read_text() for file in make_secrets(tmp_path, ["accounts", "orders"])}
    wallets = tmp_path / "passwords" / "wallets"
    assert make_secrets(tmp_path, ["accounts", "orders", "wallets"]) == [wallets]
    assert {file: file.read_text() for file in made} == made
    assert len({*made.values(), wallets.read_text()}) == len(made) + 1


@pytest.mark.parametrize("lost", ["broker.pem", "ca.pem"])
def test_a_lost_certificate_is_made_anew_with_the_one_it_belongs_to(tmp_path: Path, lost: str) -> None:
    make_secrets(tmp_path, ["accounts"])
    (tmp_path / lost).unlink()
    assert make_secrets(tmp_path, ["accounts"]) == [tmp_path / "broker.pem", tmp_path / "ca.pem"]


def test_certificates_that_expire_soon_are_made_anew(tmp_path: Path) -> None:
    make_secrets(tmp_path, ["accounts"])
    (tmp_path / "broker.pem").write_bytes(Authority().issue(["broker"], valid=timedelta(days=29)))
    assert make_secrets(tmp_path, ["accounts"]) == [tmp_path / "broker.pem", tmp_path / "ca.pem"]
    assert make_secrets(tmp_path, ["accounts"]) == []


def test_secrets_that_a_full_disk_cut_off_are_made_whole_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path, text: str) -> None:
        file.write_bytes(text[:5].encode())
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "argv", ["dev.py", "secrets", str(tmp_path)])
    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", full)
        with pytest.raises(SystemExit, match=r"No space left.*\n.*free some disk space"):
            cli.main()
    made = make_secrets(tmp_path, found_services())
    assert len(made) == len(found_services()) + 3


def test_only_the_owner_can_enter_the_folder_of_secrets(tmp_path: Path) -> None:
    (file, *_) = make_secrets(tmp_path / "secrets", ["accounts"])
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o644


def test_the_issuers_key_is_in_the_checkout_wherever_the_verb_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert DevIssuer().key_set.parent == CHECKOUT / ".onefold" / "issuer"


def test_a_container_starts_without_what_makes_certificates() -> None:
    """Its entrypoint runs the CLI, which has `secrets` beside others."""
    looks = "import sys, shared.dev.verbs.deploying; print('trustme' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", looks], check=True, capture_output=True, text=True)
    assert found.stdout == "False\n"


def test_a_principal_is_made_with_the_password_its_worker_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, str] = {}
    monkeypatch.setattr(brokers, "load_services", lambda: [Service(TOPOLOGY)])
    monkeypatch.setattr(
        brokers, "create_principals", lambda passwords, _, mechanism: made.update(passwords, mechanism=mechanism)
    )
    monkeypatch.setattr(brokers, "grant", lambda *_: 1)
    file = tmp_path / TOPOLOGY.service
    file.write_text("a word\n")  # with the line end that an editor adds
    ca = tmp_path / "ca.pem"
    ca.write_bytes(Authority().certificate)
    monkeypatch.setenv("ONEFOLD_KAFKA_USER", TOPOLOGY.service)
    monkeypatch.setenv("ONEFOLD_KAFKA_MECHANISM", "SCRAM-SHA-256")
    monkeypatch.setenv("ONEFOLD_KAFKA_CA", str(ca))
    monkeypatch.setenv("ONEFOLD_KAFKA_PASSWORD_FILE", str(file))
    CliRunner().invoke(cli.cli, ["grant", "--passwords", str(tmp_path)], catch_exceptions=False)
    password = load_settings().kafka_password.get_secret_value()
    assert made == {TOPOLOGY.service: password, "mechanism": "SCRAM-SHA-256"}


def test_no_principal_is_made_that_no_client_would_be() -> None:
    with pytest.raises(ProvisionError, match=r"PLAIN has no principals on the brokers; fix: .*without --passwords"):
        create_principals({"accounts": "pw"}, "127.0.0.1:1", "PLAIN")


def test_a_password_file_that_is_empty_is_named(tmp_path: Path) -> None:
    """As an interrupted editor, or a secret that was not mounted yet, leaves it."""
    (tmp_path / "accounts").write_text("\n")
    with pytest.raises(StageFailed, match=f"{tmp_path}/accounts is empty"):
        brokers._password(tmp_path / "accounts")


@pytest.mark.usefixtures("known")
def test_the_settings_that_require_tokens_are_printed_as_a_shell_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = DevIssuer(tmp_path / "two words")
    monkeypatch.setattr(deploying, "DevIssuer", lambda: issuer)
    shown = CliRunner().invoke(cli.cli, ["token", "accounts", "--settings"]).output
    read = subprocess.run(["sh", "-ec", f'{shown}printf %s "$ONEFOLD_AUTH_JWKS"'], capture_output=True, text=True)
    assert (read.stdout, read.stderr) == (str(issuer.key_set), "")


@pytest.mark.parametrize(("host", "trusted"), [("broker", True), ("another", False)])
def test_the_brokers_certificate_passes_strict_verification(tmp_path: Path, host: str, trusted: bool) -> None:
    make_secrets(tmp_path, [])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "broker.pem")
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    if trusted:
        handshake(client, server, host)
    else:
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            handshake(client, server, host)


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True)]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                pass


@pytest.mark.parametrize(("version", "groups"), [(1, {"accounts-v2"}), (3, {"accounts", "accounts-v2", "accounts-v4"})])
def test_a_worker_may_ask_about_all_versions_before_its_own_and_the_next(version: int, groups: set[str]) -> None:
    """Else it would ask for ever, and never be ready."""
    rules = rules_of(replace(TOPOLOGY, version=version), [])
    described = {rule.name for rule in rules if rule.operation == AclOperation.DESCRIBE}
    assert described == groups
