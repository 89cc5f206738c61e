"""A process starts only with settings that are known, possible and, in prod, safe."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from shared.dev.authority import Authority
from shared.runtime.settings import DEV_PEER_SECRET, Principal, Settings, SettingsError, load_settings

SAFE = {
    "ONEFOLD_ENV": "prod",
    "ONEFOLD_REPLICATION": "3",
    "ONEFOLD_MIN_ISR": "2",
    "ONEFOLD_AUTH": "on",
    "ONEFOLD_AUTH_ISSUER": "https://issuer.example",
    "ONEFOLD_AUTH_AUDIENCE": "accounts",
    "ONEFOLD_AUTH_JWKS": "https://issuer.example/keys",
    "ONEFOLD_PEERS": "10.0.0.0/8",
    "ONEFOLD_PEER_SECRET": "a secret of our own, and long enough",
    "ONEFOLD_RATE_LIMIT": "100",
}


@pytest.fixture(autouse=True)
def _no_settings_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings().environment():
        monkeypatch.delenv(name, raising=False)


def load(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> Settings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load_settings()


def refusal(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> list[str]:
    with pytest.raises(SettingsError) as refused:
        load(monkeypatch, variables)
    return str(refused.value).splitlines()


def test_without_any_variable_one_local_broker_is_used() -> None:
    settings = load_settings()
    assert (settings.bootstrap, settings.replication, settings.url) == (
        "127.0.0.1:9092",
        1,
        "http://127.0.0.1:8000",
    )


def test_the_url_of_an_ipv6_host_has_brackets() -> None:
    assert Settings(http_host="::1").url == "http://[::1]:8000"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"advertised_url": "http://Orders-0.orders:80"}, "http://orders-0.orders"),
        ({"advertised_url": "https://h:443"}, "https://h"),
        ({"http_port": 80}, "http://127.0.0.1"),
        ({"advertised_url": "http://[::1]:8001"}, "http://[::1]:8001"),
    ],
)
def test_the_url_is_as_the_group_tells_it_to_others(given: dict[str, Any], url: str) -> None:
    """Otherwise a worker would take itself for another one."""
    assert Settings(**given).url == url


def test_variables_set_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"ONEFOLD_INSTANCE": "b", "ONEFOLD_DATA_DIR": "/data", "ONEFOLD_BOOTSTRAP": "a:1,[::1]:2"}
    settings = load(monkeypatch, given)
    assert settings.store_dir("accounts") == Path("/data/accounts-b")
    assert settings.bootstrap == "a:1,[::1]:2"


@pytest.mark.parametrize("name", ["ONEFOLD_PORT", "ONEFOLD_HTPP_PORT", "ONEFOLD_HTTP_PORTS", "ONEFOLD_PORTS"])
def test_a_misspelt_port_is_refused_and_not_taken_for_a_kubernetes_variable(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (line,) = refusal(monkeypatch, {name: "9000"})
    assert line.startswith(f"{name} is unknown; ")


def test_a_misspelt_variable_of_dev_py_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(monkeypatch, {"ONEFOLD_TOKNE": "x"}) == ["ONEFOLD_TOKNE is unknown; did you mean: ONEFOLD_TOKEN"]


def test_a_kubernetes_variable_for_a_service_called_onefold_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, {"ONEFOLD_PORT": "tcp://10.0.0.7:8000"}).http_port == 8000


def test_every_wrong_variable_is_named_with_its_value_and_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {
        "ONEFOLD_ENV": "staging",
        "ONEFOLD_BOOTSTRAP": "broker",
        "ONEFOLD_REPLICATION": "two",
        "ONEFOLD_HTTP_PORT": "99999",
        "ONEFOLD_ADVERTISED_URL": "http://$(HOSTNAME).accounts:8000",
        "ONEFOLD_INSTANCE": "../1",
        "ONEFOLD_REPLICAS": "3",
        "ONEFOLD_COLOUR": "red",
    }
    lines = refusal(monkeypatch, wrong)
    assert lines[0].startswith("ONEFOLD_COLOUR is unknown; allowed are: ONEFOLD_ENV, ONEFOLD_BOOTSTRAP, ")
    assert lines[1:] == [
        "ONEFOLD_REPLICAS is unknown; did you mean: ONEFOLD_REPLICATION",
        "ONEFOLD_ENV='staging' is not allowed: dev, or prod, which refuses settings that can lose data or "
        "let anybody in",
        "ONEFOLD_BOOTSTRAP='broker' is not allowed: brokers as host:port, comma-separated",
        "ONEFOLD_REPLICATION='two' is not allowed: copies of every topic, 1 to 9",
        "ONEFOLD_HTTP_PORT='99999' is not allowed: port of the HTTP server, 1 to 65535",
        "ONEFOLD_ADVERTISED_URL='http://$(HOSTNAME).accounts:8000' is not allowed: address where others call this "
        "instance: http://host:port, with all variables expanded",
        "ONEFOLD_INSTANCE='../1' is not allowed: unique in its service: up to 63 letters, digits, dots, dashes, "
        "underscores",
    ]


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"ONEFOLD_MIN_ISR": "2"}, "ONEFOLD_MIN_ISR=2 is above ONEFOLD_REPLICATION=1"),
        ({"ONEFOLD_HTTP_HOST": "0.0.0.0"}, "ONEFOLD_HTTP_HOST=0.0.0.0 needs ONEFOLD_ADVERTISED_URL"),
        ({"ONEFOLD_HTTP_HOST": "0"}, "ONEFOLD_HTTP_HOST=0 needs ONEFOLD_ADVERTISED_URL"),
        ({"ONEFOLD_HTTP_HOST": "0:0::0"}, "ONEFOLD_HTTP_HOST=0:0::0 needs ONEFOLD_ADVERTISED_URL"),
        ({"ONEFOLD_AUTH": "on"}, "ONEFOLD_AUTH=on needs ONEFOLD_AUTH_ISSUER"),
        ({"ONEFOLD_BOOTSTRAP": "a:1,kafka:99999"}, "ONEFOLD_BOOTSTRAP=kafka:99999 is not an address"),
        ({"ONEFOLD_ADVERTISED_URL": "http://:8000"}, "ONEFOLD_ADVERTISED_URL=http://:8000 is not an address"),
        ({"ONEFOLD_ADVERTISED_URL": "http://a:80000"}, "ONEFOLD_ADVERTISED_URL=http://a:80000 is not an address"),
        ({"ONEFOLD_ADVERTISED_URL": "http://a:80a"}, "ONEFOLD_ADVERTISED_URL=http://a:80a is not an address"),
        ({"ONEFOLD_DATA_DIR": ""}, "ONEFOLD_DATA_DIR is empty, or the working folder: name a folder"),
        ({"ONEFOLD_PEERS": "*.local,10.0.0.1/8"}, "ONEFOLD_PEERS=10.0.0.1/8 would match nobody: 10.0.0.1/8 has host"),
        ({"ONEFOLD_PEERS": "10.0.0.0/33"}, "ONEFOLD_PEERS=10.0.0.0/33 would match nobody"),
        ({"ONEFOLD_TRUSTED_PROXIES": "10.0.0.1/8"}, "ONEFOLD_TRUSTED_PROXIES=10.0.0.1/8 would match nobody"),
        ({"ONEFOLD_TRUSTED_PROXIES": "::1,proxy"}, "ONEFOLD_TRUSTED_PROXIES=proxy would match nobody"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], named: str
) -> None:
    assert refusal(monkeypatch, variables)[0].startswith(named)


@pytest.mark.parametrize("keys", ["nowhere.json", "HTTPS://issuer.example/keys", "issuer.example/keys"])
def test_a_key_set_that_is_neither_a_file_nor_a_url_is_refused(monkeypatch: pytest.MonkeyPatch, keys: str) -> None:
    """Else every token would be answered 503."""
    (line,) = refusal(monkeypatch, SAFE | {"ONEFOLD_AUTH_JWKS": keys})
    assert line == f"ONEFOLD_AUTH_JWKS={keys} is no file: name one, or a URL that begins with https://"


@pytest.mark.parametrize("env", ["dev", "prod"])
def test_no_environment_asks_for_tokens_while_its_workers_share_the_secret_that_everybody_knows(
    monkeypatch: pytest.MonkeyPatch, env: str
) -> None:
    """Whoever knows it can be anybody, as a worker that passes a request on."""
    (line,) = refusal(monkeypatch, SAFE | {"ONEFOLD_ENV": env, "ONEFOLD_PEER_SECRET": DEV_PEER_SECRET})
    assert line.startswith("ONEFOLD_PEER_SECRET is the one everybody knows")
    assert "; fix: set a secret of your own, or start the worker by dev.py" in line
    assert load(monkeypatch, {"ONEFOLD_ENV": "dev", "ONEFOLD_AUTH": "off"}).auth == "off"


def test_without_auth_nobody_looks_for_its_key_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, {"ONEFOLD_AUTH_JWKS": "nowhere.json"}).auth_jwks == "nowhere.json"


@pytest.mark.parametrize("proxies", ["", "*", "10.0.0.7, ::1", "10.0.0.0/8,fd00::/8"])
def test_proxies_are_addresses_or_networks(monkeypatch: pytest.MonkeyPatch, proxies: str) -> None:
    assert load(monkeypatch, {"ONEFOLD_TRUSTED_PROXIES": proxies}).trusted_proxies == proxies


@pytest.mark.parametrize("origins", ["*", "shop.example", "https://Shop.example", "https://a/", "https://a, https://b"])
def test_an_origin_is_a_scheme_and_a_host_in_lower_case_without_a_path(
    monkeypatch: pytest.MonkeyPatch, origins: str
) -> None:
    """As a browser sends it; any other would match none."""
    (line,) = refusal(monkeypatch, {"ONEFOLD_CORS_ORIGINS": origins})
    assert line.startswith(f"ONEFOLD_CORS_ORIGINS={origins!r} is not allowed: origins whose pages may call")


@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1:8000", "http://localhost", ""])
def test_the_http_host_is_no_url(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    fix = "name or address that the HTTP server binds, without brackets or a port"
    assert refusal(monkeypatch, {"ONEFOLD_HTTP_HOST": host}) == [f"ONEFOLD_HTTP_HOST={host!r} is not allowed: {fix}"]


@pytest.mark.parametrize("host", ["::1", "fe80::1%eth0", "0.0.0.0", "accounts-1.internal"])
def test_the_http_host_is_a_name_or_an_address(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    variables = {"ONEFOLD_HTTP_HOST": host, "ONEFOLD_ADVERTISED_URL": "http://accounts-1:8000"}
    assert load(monkeypatch, variables).http_host == host


def test_prod_accepts_safe_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, SAFE).env == "prod"


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"ONEFOLD_REPLICATION": "2"}, "ONEFOLD_REPLICATION=2 is too few"),
        ({"ONEFOLD_MIN_ISR": "1"}, "ONEFOLD_MIN_ISR=1 is too few"),
        ({"ONEFOLD_MIN_ISR": "3"}, "ONEFOLD_MIN_ISR=3 stops writes when one broker is down"),
        ({"ONEFOLD_BOOTSTRAP": "127.0.0.1:1,kafka:9092"}, "ONEFOLD_BOOTSTRAP=kafka:9092 is plaintext"),
        ({"ONEFOLD_AUTH": "off"}, "ONEFOLD_AUTH=off lets anybody do anything"),
        ({"ONEFOLD_AUTH_ISSUER": "onefold-dev"}, "ONEFOLD_AUTH_ISSUER=onefold-dev signs with a key in this checkout"),
        ({"ONEFOLD_AUTH_JWKS": "http://issuer.example/keys"}, "ONEFOLD_AUTH_JWKS=http://issuer.example/keys can be"),
        ({"ONEFOLD_PEERS": "*"}, "ONEFOLD_PEERS=* lets a member of the group name any address"),
        ({"ONEFOLD_PEERS": "10.0.0.0/8,*"}, "ONEFOLD_PEERS=* lets a member of the group name any address"),
        (
            {"ONEFOLD_TRUSTED_PROXIES": "*"},
            "ONEFOLD_TRUSTED_PROXIES=* lets a client make up the address it is counted by",
        ),
        ({"ONEFOLD_RATE_LIMIT": "0"}, "ONEFOLD_RATE_LIMIT=0 lets one client take everything"),
        ({"ONEFOLD_FAILPOINT": "after_store:kill:1"}, "ONEFOLD_FAILPOINT=after_store:kill:1 ends the worker"),
    ],
)
def test_prod_refuses_settings_that_lose_data_or_let_anybody_in_and_dev_does_not(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], named: str
) -> None:
    assert refusal(monkeypatch, SAFE | variables)[0].startswith(named)
    assert load(monkeypatch, {"ONEFOLD_ENV": "dev"}).env == "dev"


def test_the_environment_of_settings_gives_another_process_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(bootstrap="a:1", advertised_url="http://b:2", instance="7", standbys=1)
    assert load(monkeypatch, settings.environment()) == settings


@pytest.mark.parametrize("variable", ["ONEFOLD_PEER_SECRET", "ONEFOLD_PEER_SECRT", "ONEFOLD_KAFKA_SECRET"])
def test_a_refusal_never_quotes_a_secret(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    assert "hush" not in "\n".join(refusal(monkeypatch, {variable: "hush"}))


def test_settings_never_show_a_secret() -> None:
    assert "hush" not in repr(Settings(peer_secret=SecretStr("hush, hush, hush, hush, hush, hush, hush")))


def test_settings_are_immutable() -> None:
    with pytest.raises(ValidationError):
        Settings().standbys = 3  # type: ignore[misc]


@pytest.fixture
def signing_in(tmp_path: Path) -> dict[str, str]:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(Authority().certificate)
    return {"ONEFOLD_KAFKA_USER": "accounts", "ONEFOLD_KAFKA_PASSWORD": "hush", "ONEFOLD_KAFKA_CA": str(ca)}


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("ONEFOLD_KAFKA_USER", "ONEFOLD_KAFKA_PASSWORD and ONEFOLD_KAFKA_CA need ONEFOLD_KAFKA_USER"),
        ("ONEFOLD_KAFKA_PASSWORD", "ONEFOLD_KAFKA_USER=accounts needs ONEFOLD_KAFKA_PASSWORD"),
        ("ONEFOLD_KAFKA_CA", "ONEFOLD_KAFKA_USER=accounts needs ONEFOLD_KAFKA_CA"),
    ],
)
def test_signing_in_to_the_brokers_needs_user_password_and_ca(
    monkeypatch: pytest.MonkeyPatch, signing_in: dict[str, str], missing: str, named: str
) -> None:
    del signing_in[missing]
    (line,) = refusal(monkeypatch, signing_in)
    assert line.startswith(named)
    assert "hush" not in line


@pytest.mark.parametrize("file", ["/nowhere", __file__])
def test_a_ca_file_without_a_certificate_is_refused(
    monkeypatch: pytest.MonkeyPatch, signing_in: dict[str, str], file: str
) -> None:
    (line,) = refusal(monkeypatch, signing_in | {"ONEFOLD_KAFKA_CA": file})
    assert line.startswith(f"ONEFOLD_KAFKA_CA={file} holds no certificate: ")


def test_prod_may_use_remote_brokers_when_it_signs_in(
    monkeypatch: pytest.MonkeyPatch, signing_in: dict[str, str]
) -> None:
    settings = load(monkeypatch, SAFE | signing_in | {"ONEFOLD_BOOTSTRAP": "kafka:9093"})
    assert settings.principal == Principal("accounts", "hush", Path(signing_in["ONEFOLD_KAFKA_CA"]))


def test_a_user_signs_in_by_a_mechanism_that_there_is(
    monkeypatch: pytest.MonkeyPatch, signing_in: dict[str, str]
) -> None:
    key = {"ONEFOLD_KAFKA_USER": "$ConnectionString", "ONEFOLD_KAFKA_MECHANISM": "PLAIN"}  # as of managed Kafka
    principal = load(monkeypatch, signing_in | key).principal
    assert principal == Principal("$ConnectionString", "hush", Path(signing_in["ONEFOLD_KAFKA_CA"]), "PLAIN")
    (line,) = refusal(monkeypatch, signing_in | {"ONEFOLD_KAFKA_MECHANISM": "GSSAPI"})
    assert line.startswith("ONEFOLD_KAFKA_MECHANISM='GSSAPI' is not allowed: how that user signs in: SCRAM-SHA-512, ")
    (line,) = refusal(monkeypatch, signing_in | key | {"ONEFOLD_KAFKA_USER": 'a" b'})
    assert line.startswith("ONEFOLD_KAFKA_USER=")


def test_a_client_that_gets_a_token_says_where(monkeypatch: pytest.MonkeyPatch, signing_in: dict[str, str]) -> None:
    url = "http://issuer/token"
    (line,) = refusal(monkeypatch, signing_in | {"ONEFOLD_KAFKA_TOKEN_URL": url})
    assert line == "ONEFOLD_KAFKA_TOKEN_URL and ONEFOLD_KAFKA_MECHANISM=OAUTHBEARER need each other"
    by_token = signing_in | {"ONEFOLD_KAFKA_TOKEN_URL": url, "ONEFOLD_KAFKA_MECHANISM": "OAUTHBEARER"}
    principal = load(monkeypatch, by_token).principal
    assert principal is not None
    assert (principal.mechanism, principal.token_url) == ("OAUTHBEARER", url)
    (line,) = refusal(monkeypatch, SAFE | by_token)
    assert line == f"ONEFOLD_KAFKA_TOKEN_URL={url} shows the password in transit: prod needs https"


@pytest.mark.parametrize("variable", ["ONEFOLD_KAFKA_PASSWORD_FILE", "onefold_kafka_password_file"])
def test_a_secret_may_come_from_a_file(
    monkeypatch: pytest.MonkeyPatch, signing_in: dict[str, str], tmp_path: Path, variable: str
) -> None:
    file = tmp_path / "password"
    file.write_text("from a file\n")
    settings = load(monkeypatch, signing_in | {variable: str(file)})
    assert settings.kafka_password.get_secret_value() == "from a file"


def test_a_secret_file_must_exist_and_only_secrets_may_come_from_files(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"ONEFOLD_PEER_SECRET_FILE": "/nowhere", "ONEFOLD_KAFKA_USER_FILE": __file__}
    unknown, unread = refusal(monkeypatch, missing)
    assert unknown.startswith("ONEFOLD_KAFKA_USER_FILE is unknown; did you mean: ONEFOLD_KAFKA_USER")
    assert unread == "ONEFOLD_PEER_SECRET_FILE=/nowhere cannot be read: No such file or directory"


def test_a_secret_file_must_be_utf_8(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"\xff" * 32)
    (line,) = refusal(monkeypatch, {"ONEFOLD_PEER_SECRET_FILE": str(file)})
    assert line == f"ONEFOLD_PEER_SECRET_FILE={file} cannot be read: it is not UTF-8"
