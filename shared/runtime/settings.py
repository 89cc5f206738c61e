"""A process's settings: the ONEFOLD_* variables of its environment, read once at its start."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import ssl
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict
from yarl import URL

from shared.domain.errors import OnefoldError
from shared.runtime import failpoints

PREFIX = "ONEFOLD_"
TOKEN_VARIABLE = "ONEFOLD_TOKEN"
_READ_ELSEWHERE = frozenset({"ONEFOLD_MAVEN_REPOSITORY", TOKEN_VARIABLE})  # the first by shared.runtime.jars
# Kubernetes sets these in every pod for a Service `orders`; its ORDERS_PORT is a URL
_KUBERNETES_VARIABLE = re.compile(r"\w+_(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT_\d+_\w+=|PORT=\w+://)")
_BROKER = r"([^\s,:\[\]]+|\[[0-9a-fA-F:]+\]):\d{1,5}"


Mechanism = Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"]

SCRAM: Mechanism = "SCRAM-SHA-512"
DEV_ISSUER = "onefold-dev"
DEV_PEER_SECRET = "known-to-everybody-so-for-dev-only"

S = TypeVar("S", bound=BaseSettings)


def operators_token() -> str:
    """The bearer token with which commands ask workers; empty where the environment has none."""
    return os.environ.get(TOKEN_VARIABLE, "").strip()


class SettingsError(OnefoldError):
    """A variable is unknown, wrong or unsafe; nothing was started.

    Operator action: correct each named variable and start again.
    """


class Principal(NamedTuple):
    """How a process authenticates to the brokers, and the certificate by which it authenticates them.

    With a token_url, user and password are the client's id and secret there, and the brokers get the token.
    """

    user: str
    password: str
    ca: Path
    mechanism: Mechanism = SCRAM
    token_url: str | None = None
    token_scope: str | None = None


class Settings(BaseSettings):
    """One process's settings; the defaults run on one local broker.

    A field's description appears in the error message for a wrong value.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    env: Annotated[
        Literal["dev", "prod"],
        Field(description="dev, or prod, which refuses settings that can lose data or let anybody in"),
    ] = "dev"
    bootstrap: Annotated[
        str, Field(pattern=rf"^{_BROKER}(,{_BROKER})*$", description="brokers as host:port, comma-separated")
    ] = "127.0.0.1:9092"
    replication: Annotated[int, Field(ge=1, le=9, description="copies of every topic, 1 to 9")] = 1
    min_isr: Annotated[
        int, Field(ge=1, le=9, description="copies that must hold a write before it is answered, 1 to 9")
    ] = 1
    kafka_user: Annotated[
        str | None, Field(pattern=r"^[^\s\"\\]+$", description="this process's user at the brokers, over TLS")
    ] = None
    kafka_password: Annotated[SecretStr, Field(description="that user's password")] = SecretStr("")
    kafka_mechanism: Annotated[
        Mechanism, Field(description="how that user signs in: SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER")
    ] = SCRAM
    kafka_token_url: Annotated[
        str | None,
        Field(
            pattern=r"^https?://[^\s\"\\]+$",
            description="for OAUTHBEARER, where user and password get a token, as client id and secret: an https URL",
        ),
    ] = None
    kafka_token_scope: Annotated[
        str | None, Field(pattern=r"^[^\s\"\\]+( [^\s\"\\]+)*$", description="the scope of that token")
    ] = None
    kafka_ca: Annotated[
        Path | None, Field(description="file with the CA certificate that signed the brokers' certificates")
    ] = None
    http_host: Annotated[
        str,
        Field(
            pattern=r"^([A-Za-z0-9._-]+|[0-9a-fA-F:]+(%\w+)?)$",
            description="name or address that the HTTP server binds, without brackets or a port",
        ),
    ] = "127.0.0.1"
    http_port: Annotated[int, Field(ge=1, le=65535, description="port of the HTTP server, 1 to 65535")] = 8000
    advertised_url: Annotated[
        str | None,
        Field(
            pattern=r"^https?://[^\s/$()]+$",
            description="address where others call this instance: http://host:port, with all variables expanded",
        ),
    ] = None
    instance: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
            description="unique in its service: up to 63 letters, digits, dots, dashes, underscores",
        ),
    ] = "1"
    data_dir: Annotated[Path, Field(description="folder of the local stores")] = Path(".onefold/data")
    person_keys: Annotated[
        SecretStr,
        Field(description="URL of the database with the keys of personal fields; in dev, a file in the data folder"),
    ] = SecretStr("")
    sink_database: Annotated[
        SecretStr,
        Field(description="URL of the database that `sink` fills; in dev, a file in the data folder"),
    ] = SecretStr("")
    standbys: Annotated[int, Field(ge=0, le=8, description="warm copies of every table, 0 to 8")] = 0
    recovery_lag: Annotated[
        int,
        Field(
            ge=0,
            le=10**9,
            description="a partition moves once its next owner has all but so many changelog records of it",
        ),
    ] = 10_000
    session_timeout_s: Annotated[
        float,
        Field(
            ge=1.5,
            le=300,
            description="seconds until a silent worker is replaced, 1.5 to 300; brokers allow less than 6 only where "
            "their `group.min.session.timeout.ms` does",
        ),
    ] = 10
    leave_on_stop: Annotated[
        bool,
        Field(
            description="true hands partitions over at once; false keeps them for a restart within the session time-out"
        ),
    ] = True
    max_streams: Annotated[int, Field(ge=0, le=10_000, description="streams of changes at once, 0 to 10000")] = 100
    max_streams_per_caller: Annotated[
        int, Field(ge=0, le=10_000, description="of them, those of one `sub`, or one address without auth, 0 to 10000")
    ] = 20
    max_readers: Annotated[
        int,
        Field(ge=2, le=10_000, description="lists and histories read at once, half for one client, 2 to 10000"),
    ] = 64
    max_connections: Annotated[
        int,
        Field(
            ge=2,
            le=100_000,
            description="connections at once, half for one address unless it is a trusted proxy's, 2 to 100000",
        ),
    ] = 1_000
    stalled_after_s: Annotated[
        float, Field(ge=1, le=3600, description="seconds until a client that takes nothing is dropped, 1 to 3600")
    ] = 60
    rate_limit: Annotated[
        int, Field(ge=0, le=1_000_000, description="requests per second from one client; 0: any number")
    ] = 0
    trusted_proxies: Annotated[
        str,
        Field(description="proxies whose X-Forwarded-For is trusted: addresses or networks, comma-separated; *: any"),
    ] = ""
    cors_origins: Annotated[
        str,
        Field(
            pattern=r"^(https?://[^\s/,*A-Z]+(,https?://[^\s/,*A-Z]+)*)?$",
            description="origins whose pages may call from a browser, such as https://shop.example, comma-separated",
        ),
    ] = ""
    peers: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9.:/*_\[\]-]+(,[A-Za-z0-9.:/*_\[\]-]+)*$",
            description="where workers may call peers: networks or name patterns, or one `:PORT` of them; *: any",
        ),
    ] = "*"
    peer_secret: Annotated[
        SecretStr, Field(min_length=32, description="secret that a service's workers share: at least 32 characters")
    ] = SecretStr(DEV_PEER_SECRET)
    auth: Annotated[
        Literal["off", "on"], Field(description="on requires bearer tokens; off lets anybody do anything")
    ] = "off"
    auth_issuer: Annotated[str | None, Field(min_length=1, description="the `iss` of tokens")] = None
    auth_audience: Annotated[str | None, Field(min_length=1, description="the `aud` of tokens for this service")] = None
    auth_jwks: Annotated[
        str | None, Field(min_length=1, description="the issuer's key set: an https URL or a file")
    ] = None
    auth_jwks_max_age_s: Annotated[
        float,
        Field(
            ge=900,
            le=604_800,
            description="seconds that keys are trusted which can't be read again, 900 to 604800; every 600 they are",
        ),
    ] = 3_600
    auth_owner_claim: Annotated[
        str, Field(min_length=1, description="the claim with the id of the aggregate its bearer owns")
    ] = "sub"
    ui: Annotated[Literal["auto", "on", "off"], Field(description="page of the service at /ui; auto: in dev only")] = (
        "auto"
    )
    log_format: Annotated[
        Literal["auto", "console", "json"],
        Field(description="console, json, or auto: console in a terminal and json elsewhere"),
    ] = "auto"
    access_log: Annotated[
        Literal["off", "on"], Field(description="on logs every request that is answered, but probes and scrapes")
    ] = "off"
    otlp: Annotated[
        str | None,
        Field(
            pattern=r"^https?://[^\s/@]+/\S*$",
            description="where an OpenTelemetry collector takes traces, such as http://127.0.0.1:4318/v1/traces",
        ),
    ] = None
    traces: Annotated[
        float, Field(ge=0, le=1, description="the share of stories that are traced, 0 to 1, if there is a collector")
    ] = 0.01
    failpoint: Annotated[
        str | None, Field(pattern=failpoints.PATTERN, description="step:kill or stop:times, for tests in dev")
    ] = None

    @property
    def principal(self) -> Principal | None:
        """None: brokers are reached in plaintext, without authentication."""
        if self.kafka_user is None or self.kafka_ca is None:
            return None
        password, tokens = self.kafka_password.get_secret_value(), (self.kafka_token_url, self.kafka_token_scope)
        return Principal(self.kafka_user, password, self.kafka_ca, self.kafka_mechanism, *tokens)

    @property
    def shows_page(self) -> bool:
        return self.ui == "on" or (self.ui == "auto" and self.env == "dev")

    @property
    def url(self) -> str:
        """Where other instances call this one, as Faust writes it for them: in lower case, without a usual port."""
        host = f"[{self.http_host}]" if ":" in self.http_host else self.http_host
        return _normal(self.advertised_url or f"http://{host}:{self.http_port}")

    def store_dir(self, group: str) -> Path:
        """This worker's own folder for the tables of a version of a service, by its consumer group."""
        return self.data_dir / f"{group}-{self.instance}"

    def environment(self) -> dict[str, str]:
        """The variables that give another process these settings."""
        return {f"{PREFIX}{name.upper()}": _plain(value) for name, value in self if value is not None}

    @model_validator(mode="after")
    def _refuse_contradictions_and_hazards(self) -> Self:
        problems = [*self._contradictions(), *(self._hazards() if self.env == "prod" else ())]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _contradictions(self) -> Iterable[str]:
        if self.min_isr > self.replication:
            yield (
                f"ONEFOLD_MIN_ISR={self.min_isr} is above ONEFOLD_REPLICATION={self.replication}: "
                "no write could succeed"
            )
        if _is_unspecified(self.http_host) and self.advertised_url is None:
            yield f"ONEFOLD_HTTP_HOST={self.http_host} needs ONEFOLD_ADVERTISED_URL: others cannot call it"
        if self.data_dir == Path():
            yield "ONEFOLD_DATA_DIR is empty, or the working folder: name a folder for the stores alone"
        yield from self._bad_addresses()
        yield from self._incomplete_principal()
        if self.auth == "on":
            yield from self._no_issuer()
        if self.env == "prod" or self.auth == "on":
            yield from self._known_secret()

    def _known_secret(self) -> Iterable[str]:
        if self.peer_secret.get_secret_value() == DEV_PEER_SECRET:
            yield (
                "ONEFOLD_PEER_SECRET is the one everybody knows, so ONEFOLD_AUTH=on would believe anybody; "
                "fix: set a secret of your own, or start the worker by dev.py, which makes one for this checkout"
            )

    def _no_issuer(self) -> Iterable[str]:
        for name in ("auth_issuer", "auth_audience", "auth_jwks"):
            if getattr(self, name) is None:
                yield f"ONEFOLD_AUTH=on needs {PREFIX}{name.upper()}: {Settings.model_fields[name].description}"
        keys = self.auth_jwks
        if keys is not None and not keys.startswith(("https://", "http://")) and not Path(keys).is_file():
            yield f"ONEFOLD_AUTH_JWKS={keys} is no file: name one, or a URL that begins with https://"

    def _bad_addresses(self) -> Iterable[str]:
        for broker in self.bootstrap.split(","):
            if not 1 <= int(broker.rpartition(":")[2]) <= 65535:
                yield f"ONEFOLD_BOOTSTRAP={broker} is not an address: ports are 1 to 65535"
        hosts = [host_and_port(each)[0] for each in self.peers.split(",")]
        networks = [("PEERS", each) for each in hosts if "/" in each]  # the others may be names
        if self.trusted_proxies not in ("", "*"):
            networks += [("TRUSTED_PROXIES", each.strip()) for each in self.trusted_proxies.split(",")]
        for name, network in networks:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                yield f"{PREFIX}{name}={network} would match nobody: {error}"
        if self.advertised_url is not None and not _has_address(self.advertised_url):
            yield f"ONEFOLD_ADVERTISED_URL={self.advertised_url} is not an address: it needs a host, and a port"

    def _incomplete_principal(self) -> Iterable[str]:
        password = self.kafka_password.get_secret_value()
        if self.kafka_user is None and (password or self.kafka_ca is not None):
            yield "ONEFOLD_KAFKA_PASSWORD and ONEFOLD_KAFKA_CA need ONEFOLD_KAFKA_USER: without it they are not used"
        if self.kafka_user is not None and not password:
            yield f"ONEFOLD_KAFKA_USER={self.kafka_user} needs ONEFOLD_KAFKA_PASSWORD"
        if self.kafka_user is not None and self.kafka_ca is None:
            yield f"ONEFOLD_KAFKA_USER={self.kafka_user} needs ONEFOLD_KAFKA_CA, to verify the brokers first"
        if (self.kafka_mechanism == "OAUTHBEARER") != (self.kafka_token_url is not None):
            yield "ONEFOLD_KAFKA_TOKEN_URL and ONEFOLD_KAFKA_MECHANISM=OAUTHBEARER need each other"
        if self.kafka_ca is not None:
            try:
                ssl.create_default_context(cafile=self.kafka_ca)
            except OSError as error:
                yield f"ONEFOLD_KAFKA_CA={self.kafka_ca} holds no certificate: {error.strerror}"

    def _hazards(self) -> Iterable[str]:
        if self.failpoint is not None:
            yield f"ONEFOLD_FAILPOINT={self.failpoint} ends the worker: it is for tests"
        if self.replication < 3:
            yield f"ONEFOLD_REPLICATION={self.replication} is too few: prod needs 3 copies"
        if self.min_isr < 2:
            yield f"ONEFOLD_MIN_ISR={self.min_isr} is too few: prod needs every write on 2 disks"
        if self.min_isr == self.replication:
            yield f"ONEFOLD_MIN_ISR={self.min_isr} stops writes when one broker is down: prod needs less"
        for broker in self.bootstrap.split(","):
            if self.principal is None and not _is_loopback(broker.rpartition(":")[0]):
                yield f"ONEFOLD_BOOTSTRAP={broker} is plaintext off this host: prod needs ONEFOLD_KAFKA_USER"
        if self.kafka_token_url is not None and self.kafka_token_url.startswith("http://"):
            yield f"ONEFOLD_KAFKA_TOKEN_URL={self.kafka_token_url} shows the password in transit: prod needs https"
        yield from self._open_access()

    def _open_access(self) -> Iterable[str]:
        if self.auth == "off":
            yield "ONEFOLD_AUTH=off lets anybody do anything: prod needs on"
        if self.auth_issuer == DEV_ISSUER:
            yield f"ONEFOLD_AUTH_ISSUER={DEV_ISSUER} signs with a key in this checkout: prod needs an issuer of its own"
        if self.auth_jwks is not None and self.auth_jwks.startswith("http://"):
            yield f"ONEFOLD_AUTH_JWKS={self.auth_jwks} can be forged in transit: prod needs https or a file"
        if any(host_and_port(each)[0] == "*" for each in self.peers.split(",")):
            yield "ONEFOLD_PEERS=* lets a member of the group name any address: prod needs networks or hosts"
        if self.trusted_proxies == "*":
            yield "ONEFOLD_TRUSTED_PROXIES=* lets a client make up the address it is counted by: prod needs networks"
        if self.rate_limit == 0:
            yield "ONEFOLD_RATE_LIMIT=0 lets one client take everything: prod needs a limit"


def load_settings() -> Settings:
    """The settings from this process's environment. Raises SettingsError naming every wrong variable."""
    return read_settings(Settings)


def read_settings(kind: type[S]) -> S:
    """The settings from this process's environment: of each field, the variable with the prefix of `kind` before it.

    A secret may be in a file instead, named by the variable with `_FILE` behind it. Raises SettingsError, which names
    every variable that is wrong.
    """
    prefix = _prefix(kind)
    files = {f"{prefix}{name.upper()}_FILE": name for name in kind.model_fields if _is_secret(kind, name)}
    names = sorted(name for name in os.environ.keys() - _READ_ELSEWHERE if name.upper().startswith(prefix))
    known = {prefix + field.upper() for field in kind.model_fields} | files.keys()
    problems = [_unknown(kind, name) for name in names if not (name.upper() in known or _set_by_platform(prefix, name))]
    secrets, unread = _secrets(files)
    problems += unread
    try:
        settings = kind(**secrets)
    except ValidationError as error:
        problems += [line for detail in error.errors() for line in _explain(kind, detail)]
    if problems:
        raise SettingsError("\n".join(problems))
    return settings


def _secrets(files: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The contents of the named files by field, and why others can't be read. files: the field by variable."""
    found, problems = dict[str, Any](), list[str]()
    for variable, file in os.environ.items():
        name = files.get(variable.upper())
        if name is None:
            continue
        try:
            found[name] = Path(file).read_text("utf-8").strip()
        except OSError as error:
            problems.append(f"{variable}={file} cannot be read: {error.strerror}")
        except UnicodeDecodeError:
            problems.append(f"{variable}={file} cannot be read: it is not UTF-8")
    return found, problems


def _set_by_platform(prefix: str, name: str) -> bool:
    by_compose = prefix != PREFIX and name == f"{prefix}PORTS"  # the service's ports on the host
    return by_compose or _KUBERNETES_VARIABLE.match(f"{name}={os.environ[name]}") is not None


def _prefix(kind: type[BaseSettings]) -> str:
    return kind.model_config.get("env_prefix", "")


def _unknown(kind: type[BaseSettings], variable: str) -> str:
    prefix = _prefix(kind)
    elsewhere = [each.removeprefix(prefix).lower() for each in sorted(_READ_ELSEWHERE) if each.startswith(prefix)]
    known = [*kind.model_fields, *elsewhere]
    near = difflib.get_close_matches(variable.upper().removeprefix(prefix).lower(), known, n=1)
    names = ", ".join(prefix + name.upper() for name in near or known)
    return f"{variable} is unknown; {'did you mean' if near else 'allowed are'}: {names}"  # its value may be a secret


def _is_secret(kind: type[BaseSettings], name: str) -> bool:
    return kind.model_fields[name].annotation is SecretStr


def _explain(kind: type[BaseSettings], detail: ErrorDetails) -> list[str]:
    if not detail["loc"]:
        return str(detail["ctx"]["error"]).splitlines()
    name = str(detail["loc"][0])
    allowed = kind.model_fields[name].description
    found = "" if _is_secret(kind, name) else f"={detail['input']!r}"
    return [f"{_prefix(kind)}{name.upper()}{found} is not allowed: {allowed}"]


def _plain(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


@cache
def _normal(url: str) -> str:
    return str(URL(url))


def host_and_port(pattern: str) -> tuple[str, int | None]:
    """A network or a name pattern, and the port behind it if there is one; that of IPv6 needs brackets: [::1]:80."""
    host, colon, port = pattern.rpartition(":")
    if not (colon and port.isdigit()) or (":" in host and not host.endswith("]")):
        return pattern.strip("[]"), None
    return host.strip("[]"), int(port)


def _has_address(url: str) -> bool:
    try:
        return bool(urlsplit(url).hostname) and urlsplit(url).port != 0
    except ValueError:
        return False


def _is_unspecified(host: str) -> bool:
    try:
        return host == "0" or ipaddress.ip_address(host).is_unspecified  # "0": to a socket the same as 0.0.0.0
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
