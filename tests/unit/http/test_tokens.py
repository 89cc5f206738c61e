"""Every route of every service, requested with every kind of token that must not open it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fastapi import APIRouter, FastAPI, Header, Query, Request, Response
from fastapi.routing import iter_route_contexts
from pydantic import AliasChoices, BaseModel, Field, SecretStr

from shared.dev.issuer import KEY_ID, DevIssuer
from shared.domain.errors import NotReady
from shared.http import auth, stories
from shared.http.api import create_api
from shared.http.guard import OwnedRouter
from shared.http.node import Node
from shared.http.paths import PathId
from shared.http.peers import LINES, Peers
from shared.http.refusals import Unauthenticated
from shared.runtime.clock import BrokersClock, elapsed_s
from shared.runtime.settings import DEV_ISSUER, Settings
from shared.testing.node import MemoryNode
from tests.accounts.topology import TOPOLOGY
from tests.unit.http.services import PEER_SECRET, SERVICES, api_of, client_of, issuer_settings, own_api

pytestmark = pytest.mark.anyio

OPEN = {"/healthz", "/readyz"}  # to whoever can reach the port: load balancers bring no token
PAGES = {"/docs", "/docs/oauth2-redirect", "/openapi.json"}  # of dev only, and in no OpenAPI
STRANGER = "somebody-else"
EXAMPLES = {"day": "1997-01-18", "hour": "sat-09"}


class Route(NamedTuple):
    """A route of a service, as its OpenAPI has it."""

    service: str
    method: str
    path: str


def routes(service: str, api: FastAPI) -> Iterator[Route]:
    for path, methods in api.openapi()["paths"].items():
        yield from (Route(service, method.upper(), path) for method in methods if path not in OPEN)


ROUTES = [route for service in SERVICES for route in routes(service, api_of(service))]


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> DevIssuer:
    return DevIssuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def guarded(issuer: DevIssuer) -> dict[str, FastAPI]:
    return {service: api_of(service, issuer_settings(issuer.key_set.parent, service)) for service in SERVICES}


@pytest.fixture(scope="module")
def own(issuer: DevIssuer) -> FastAPI:
    return own_api(issuer_settings(issuer.key_set.parent, "accounts"))


def scopes_of(route: Route) -> list[str]:
    """The narrowest scopes that open the route."""
    right = "read" if route.method == "GET" else "write"
    of_operators = route.path.split("/")[1] in ("cluster", "dead-letters", "metrics", "stories", "versions")
    of_contents = route.path.endswith(("/record", "/correct"))
    opens = ["operations"] * of_operators + [route.service] * (of_contents or not of_operators)
    return [f"{each}:{right}" for each in opens]


def target(route: Route, aggregate_id: str) -> str:
    path = route.path
    while "{" in path:
        name = path[path.index("{") + 1 : path.index("}")]
        path = path.replace(f"{{{name}}}", EXAMPLES.get(name, aggregate_id))
    return path


async def asked(api: FastAPI, route: Route, token: str | None, aggregate_id: str = "ann") -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    if route.path.endswith("/commands"):
        headers["Content-Type"] = LINES
    async with client_of(api) as http:
        return await http.request(route.method, target(route, aggregate_id), headers=headers)


def unsigned(claims: dict[str, Any], header: dict[str, Any]) -> str:
    parts = (json.dumps(header).encode(), json.dumps(claims).encode())
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def bad_tokens(issuer: DevIssuer, route: Route) -> dict[str, str | None]:
    """Each differs in one respect from a token that would open the route."""
    audience, scopes, now = route.service, scopes_of(route), time.time()
    good = issuer.token(audience, scopes, "ann")
    claims = jwt.decode(good, options={"verify_signature": False})
    public = issuer.key().public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    confused = unsigned(claims, {"alg": "HS256", "typ": "JWT", "kid": KEY_ID})
    digest = hmac.new(pem, confused.encode(), hashlib.sha256).digest()
    other_rsa = rsa.generate_private_key(65537, 2048) if route is ROUTES[0] else None
    head, _, signature = good.split(".")
    return {
        "none": None,
        "empty": "",
        "rubbish": "rubbish",
        "expired": issuer.token(audience, scopes, "ann", exp=int(now - 3600)),
        "not yet": issuer.token(audience, scopes, "ann", nbf=int(now + 3600)),
        "wrong audience": issuer.token("another-service", scopes, "ann"),
        "wrong issuer": issuer.token(audience, scopes, "ann", iss="https://elsewhere.example"),
        "without exp": jwt.encode(
            {k: v for k, v in claims.items() if k != "exp"}, issuer.key(), "ES256", {"kid": KEY_ID}
        ),
        "alg none": unsigned(claims, {"alg": "none", "typ": "JWT", "kid": KEY_ID}) + ".",
        "HS256 with the public key": f"{confused}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}",
        "another key": jwt.encode(claims, ec.generate_private_key(ec.SECP256R1()), "ES256", {"kid": KEY_ID}),
        "an unknown key": jwt.encode(claims, ec.generate_private_key(ec.SECP256R1()), "ES256", {"kid": "dev-2"}),
        **({"another algorithm": jwt.encode(claims, other_rsa, "RS256", {"kid": KEY_ID})} if other_rsa else {}),
        "a body that was changed": f"{head}.{unsigned(claims | {'sub': 'bob'}, {}).split('.')[1]}.{signature}",
    }


@pytest.mark.parametrize("route", ROUTES, ids=str)
async def test_an_invalid_token_opens_nothing(route: Route, issuer: DevIssuer, guarded: dict[str, FastAPI]) -> None:
    for kind, token in bad_tokens(issuer, route).items():
        answer = await asked(guarded[route.service], route, token)
        assert answer.status_code == 401, (kind, answer.text)
        assert answer.headers["www-authenticate"].startswith("Bearer"), kind
        assert answer.json()["code"] == "token.invalid", kind


@pytest.mark.parametrize("route", ROUTES, ids=str)
async def test_a_token_without_the_routes_scope_is_forbidden(
    route: Route, issuer: DevIssuer, guarded: dict[str, FastAPI]
) -> None:
    every = {f"{route.service}:{right}" for right in ("read", "write", "any")} | {
        "operations:read",
        "operations:write",
        "another:read",
    }
    token = issuer.token(route.service, sorted(every - set(scopes_of(route))), "ann")
    answer = await asked(guarded[route.service], route, token)
    assert (answer.status_code, answer.json()["code"]) == (403, "scope.missing")


OWNED = [route for route in routes("accounts", own_api()) if route.path.startswith("/accounts/{")]


@pytest.mark.parametrize("route", OWNED, ids=str)
async def test_another_owners_aggregate_is_forbidden(route: Route, issuer: DevIssuer, own: FastAPI) -> None:
    for aggregate_id in ("ann", "ann%20", "an%6e%6e", "somebody%2Delse2", "%73omebody-else/", "%FF"):
        answer = await asked(own, route, issuer.token("accounts", scopes_of(route), STRANGER), aggregate_id)
        assert answer.status_code in (403, 404), answer.text
        if answer.status_code == 403:
            assert answer.json()["code"] == "owner.other"


@pytest.mark.parametrize(("path", "code"), [("?key=ann", "owner.other"), ("", "scope.missing")])
async def test_the_changes_of_others_and_of_all_are_forbidden(
    path: str, code: str, issuer: DevIssuer, own: FastAPI
) -> None:
    route = Route("accounts", "GET", f"/changes/accounts{path}")
    answer = await asked(own, route, issuer.token("accounts", ["accounts:read"], STRANGER))
    assert (answer.status_code, answer.json()["code"]) == (403, code)


@pytest.mark.parametrize("path", ["/accounts", "/accounts?limit=1"])
async def test_a_list_of_all_needs_the_right_to_all(path: str, issuer: DevIssuer, own: FastAPI) -> None:
    route = Route("accounts", "GET", path)
    refused = await asked(own, route, issuer.token("accounts", ["accounts:read"], "ann"))
    assert (refused.status_code, refused.json()["code"]) == (403, "scope.missing")
    allowed = await asked(own, route, issuer.token("accounts", ["accounts:read", "accounts:any"], "x"))
    assert allowed.status_code == 200


@pytest.mark.parametrize("route", [route for route in ROUTES if not route.path.startswith("/changes/")], ids=str)
async def test_a_token_with_the_routes_scope_and_id_opens_it(
    route: Route, issuer: DevIssuer, guarded: dict[str, FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the route then answers to a request without a body."""
    monkeypatch.setattr(stories, "WITHIN_S", 0.0)  # no broker is there to find one
    monkeypatch.setattr(stories, "SILENT_S", 0.0)
    scopes = [*scopes_of(route), f"{route.service}:any"]
    answer = await asked(guarded[route.service], route, issuer.token(route.service, scopes, "ann"))
    assert answer.status_code not in (401, 403, 500), answer.text


class OwnedList(BaseModel):
    account_id: str | None = None


class RenamedList(BaseModel):
    account_id: str | None = Field(None, validation_alias=AliasChoices("id", "account_id"))


def summaries(node: Node, peers: Peers) -> list[APIRouter]:
    router = OwnedRouter("account_id", prefix="/summaries")

    @router.get("/all")
    async def of_all(request: Request) -> Response:
        return Response()

    @router.get("/filtered")
    async def filtered(query: Annotated[OwnedList, Query()]) -> Response:
        return Response()

    @router.get("/renamed")
    async def renamed(query: Annotated[RenamedList, Query()]) -> Response:
        return Response()

    @router.get("/several")
    async def several(account_id: Annotated[list[str], Query()]) -> Response:
        return Response()

    @router.get("/headed")
    async def headed(account_id: Annotated[str | None, Header()] = None) -> Response:
        return Response()

    return [router]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("all?account_id=ann", "scope.missing"),
        ("renamed?account_id=ann&id=bob", "scope.missing"),
        ("headed?account_id=ann", "scope.missing"),
        ("filtered", "scope.missing"),
        ("filtered?account_id=bob", "owner.other"),
        ("several?account_id=bob&account_id=ann", "owner.other"),
        ("filtered?account_id=ann", None),
        ("several?account_id=ann&account_id=ann", None),
    ],
)
async def test_an_id_in_the_query_opens_only_a_route_that_reads_it(
    path: str, code: str | None, issuer: DevIssuer
) -> None:
    node = MemoryNode(TOPOLOGY, [], issuer_settings(issuer.key_set.parent, "accounts"))
    token = issuer.token("accounts", ["accounts:read"], "ann")
    answer = await asked(create_api(node, summaries), Route("accounts", "GET", f"/summaries/{path}"), token)
    assert (answer.status_code, code and answer.json()["code"]) == (403 if code else 200, code)


@pytest.mark.parametrize("prefix", ["/vouchers", "/shops/{shop}"])
def test_an_owned_route_without_the_parameter_that_names_its_owner_is_refused(prefix: str) -> None:
    router = OwnedRouter("voucher_id", prefix=prefix)
    said = rf"^{re.escape(prefix)}/{{id}}/redemptions does not have .* 'voucher_id', .*; fix: .* {{voucher_id}}"
    with pytest.raises(ValueError, match=said):

        @router.post("/{id}/redemptions")
        async def redeem(id: PathId, voucher_id: str) -> None: ...


@pytest.mark.parametrize("given", [{}, {"id_in": "voucher_id", "owned_by": "holder_id"}])
def test_an_owned_router_knows_owners_in_one_way(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"does not know the owner; fix: "):
        OwnedRouter(**given)


async def test_a_route_that_forgets_whose_rows_it_shows_shows_none(issuer: DevIssuer) -> None:
    def careless(node: Node, peers: Peers) -> list[APIRouter]:
        router = OwnedRouter(owned_by="holder_id")

        @router.get("/vouchers")
        async def vouchers(request: Request) -> Response:
            return Response("everybody's")

        return [router]

    node = MemoryNode(TOPOLOGY, [], issuer_settings(issuer.key_set.parent, "accounts"))
    for scopes, status in ((["accounts:read"], 500), (["accounts:read", "accounts:any"], 200)):
        token = issuer.token("accounts", scopes, "ann")
        answer = await asked(create_api(node, careless), Route("accounts", "GET", "/vouchers"), token)
        assert (answer.status_code, "everybody's" in answer.text) == (status, status == 200)


async def test_an_owner_needs_no_right_to_all(issuer: DevIssuer, own: FastAPI) -> None:
    token = issuer.token("accounts", ["accounts:read"], "an%n/日本")
    answer = await asked(own, Route("accounts", "GET", "/accounts/{id}"), token, "an%25n%2F%E6%97%A5本")
    assert answer.status_code == 404


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("path", sorted(OPEN))
async def test_health_is_open(service: str, path: str, guarded: dict[str, FastAPI]) -> None:
    assert (await asked(guarded[service], Route(service, "GET", path), None)).status_code == 200


@pytest.mark.parametrize("service", SERVICES)
def test_every_route_is_in_the_openapi(service: str) -> None:
    """So that the tests above leave out no route."""
    api = api_of(service)
    served = {context.path for context in iter_route_contexts(api.routes)}
    assert served - PAGES == set(api.openapi()["paths"])


async def test_an_issuers_new_key_replaces_its_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = DevIssuer(tmp_path / "issuer")
    api = own_api(issuer_settings(issuer.key_set.parent, "accounts"))
    route = Route("accounts", "GET", "/accounts/{id}")
    scopes = ["accounts:read"]
    old = issuer.token("accounts", scopes, "ann")
    assert (await asked(api, route, old)).status_code == 404
    for file in issuer.key_set.parent.iterdir():
        file.unlink()
    other = issuer.token("accounts", scopes, "ann")
    assert (await asked(api, route, other)).status_code == 401
    monkeypatch.setattr(auth, "MISS_PAUSE_S", 0.0)
    of_an_unknown_key = jwt.encode({}, issuer.key(), "ES256", {"kid": "dev-2"})
    assert (await asked(api, route, of_an_unknown_key)).status_code == 401  # but they are read again
    assert (await asked(api, route, other)).status_code == 404
    assert (await asked(api, route, old)).status_code == 401


async def test_a_token_that_was_good_expires(issuer: DevIssuer, own: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    route = Route("accounts", "GET", "/cluster")
    token = issuer.token("accounts", ["operations:read"], "ann", exp=int(time.time()) - 1)
    assert (await asked(own, route, token)).status_code == 200
    monkeypatch.setattr(auth, "LEEWAY_S", 0)
    assert (await asked(own, route, token)).status_code == 401


@pytest.mark.parametrize("ahead_s", [-7200.0, 7200.0])
@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({}, 200),
        ({"exp": -3600}, 401),
        ({"nbf": 3600}, 401),
        ({"iat": 3600}, 401),
        ({"exp": auth.LEEWAY_S // -2, "nbf": auth.LEEWAY_S // 2, "iat": auth.LEEWAY_S // 2}, 200),
    ],
    ids=["good", "expired", "not yet", "of the future", "within the leeway"],
)
async def test_a_token_is_valid_by_the_brokers_clock_whatever_this_machines_says(
    ahead_s: float,
    claims: dict[str, int],
    status: int,
    issuer: DevIssuer,
    own: FastAPI,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """claims: in seconds from now, by the brokers."""
    now = time.time() - ahead_s
    clock = BrokersClock()
    clock.learn(stamped=now, sent=elapsed_s())
    monkeypatch.setattr(auth, "brokers_clock", clock)
    times = {"iat": -10_000, "nbf": -10_000, "exp": 3600} | claims
    shifted = {name: int(now) + each for name, each in times.items()}
    token = issuer.token("accounts", ["operations:read"], "ann", **shifted)
    answer = await asked(own, Route("accounts", "GET", "/cluster"), token)
    assert answer.status_code == status, answer.text


async def test_while_the_issuers_keys_cannot_be_read_it_is_503(tmp_path: Path) -> None:
    api, issuer = own_api(issuer_settings(tmp_path, "accounts")), DevIssuer(tmp_path)
    token = issuer.token("accounts", ["accounts:read"], "ann")
    issuer.key_set.unlink()
    answer = await asked(api, Route("accounts", "GET", "/accounts/{id}"), token)
    assert answer.status_code == 503


async def test_rsa_keys_and_scp_lists_are_accepted(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())) | {"kid": "r"}
    key_set = tmp_path / "keys.json"
    key_set.write_text(json.dumps({"keys": [public, {"kty": "oct", "k": "c2VjcmV0", "kid": "o"}]}))
    api = own_api(
        Settings(
            auth="on",
            auth_issuer="i",
            auth_audience="a",
            auth_jwks=str(key_set),
            auth_owner_claim="customer",
            peer_secret=SecretStr(PEER_SECRET),
        ),
    )
    claims = {"iss": "i", "aud": ["a", "b"], "sub": "s", "customer": "ann", "exp": time.time() + 60}
    token = jwt.encode(claims | {"scp": ["accounts:read"]}, key, "RS256", {"kid": "r"})
    assert (await asked(api, Route("accounts", "GET", "/accounts/{id}"), token)).status_code == 404
    shared = jwt.encode(claims | {"scp": ["accounts:read"]}, b"secret" * 8, "HS256", {"kid": "o"})
    assert (await asked(api, Route("accounts", "GET", "/accounts/{id}"), shared)).status_code == 401


@pytest.mark.parametrize(
    "claims",
    [
        {"scope": 5},
        {"scope": 0},
        {"scope": True},
        {"scope": {"accounts:read": 1}},
        {"scope": {}},
        {"scope": ["accounts:read", 5]},
        {"scope": None, "scp": 5},
        {"exp": 10**400},
        {"exp": "soon"},
        {"exp": float("nan")},
        {"exp": None},
        {"nbf": "later"},
        {"iat": []},
    ],
    ids=lambda claims: str(claims)[:40],
)
async def test_a_signed_token_with_a_claim_that_cannot_be_read_is_401(
    claims: dict[str, Any], issuer: DevIssuer, own: FastAPI
) -> None:
    token = issuer.token("accounts", ["accounts:read"], "ann", **claims)
    answer = await asked(own, Route("accounts", "GET", "/accounts/{id}"), token)
    assert (answer.status_code, answer.json().get("code")) == (401, "token.invalid")


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"scope": None, "scp": "operations:read"}, 200),
        ({"scope": None, "scp": ["operations:read"]}, 200),
        ({"scope": ["operations:read"]}, 200),
        ({"scope": None}, 403),
        ({"scope": "", "scp": "operations:read"}, 403),
        ({"scope": "operations:read", "scp": 5}, 200),
    ],
    ids=str,
)
async def test_scopes_are_in_scope_or_without_it_in_scp(
    claims: dict[str, Any], status: int, issuer: DevIssuer, own: FastAPI
) -> None:
    token = issuer.token("accounts", ["operations:write"], "ann", **claims)
    answer = await asked(own, Route("accounts", "GET", "/cluster"), token)
    assert answer.status_code == status


MAX_AGE_S = 1000.0


class Issuer(auth.KeySet):
    """Publishes whatever it is given, or is down; counts how often it is asked."""

    def __init__(self, published: str | None) -> None:
        super().__init__("https://issuer.example/keys", "https://issuer.example", MAX_AGE_S)
        self.published = published
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def _fetch(self) -> bytes:
        self.asked += 1
        await self.may_answer.wait()
        if self.published is None:
            raise TimeoutError
        return self.published.encode()


def published(issuer: DevIssuer) -> list[dict[str, Any]]:
    issuer.key()
    keys: list[dict[str, Any]] = json.loads(issuer.key_set.read_text())["keys"]
    return keys


async def test_a_broken_key_hides_no_other(issuer: DevIssuer) -> None:
    (good,) = published(issuer)
    broken = [{**good, "kid": "short", "x": "AA"}, {**good, "kid": ["x"]}, {"kty": "RSA", "kid": "empty"}, {}]
    keys = Issuer(json.dumps({"keys": [*broken, good]}))
    assert (await keys.find(KEY_ID)).key_id == KEY_ID
    for key_id in ("short", "empty"):
        with pytest.raises(Unauthenticated):
            await keys.find(key_id)


@pytest.mark.parametrize("rubbish", [None, "", "{", "{}", "[]", "null", '{"keys": {}}', '{"keys": [1]}', "[" * 10_000])
async def test_while_an_issuer_publishes_no_keys_the_held_ones_stay_valid(
    rubbish: str | None, issuer: DevIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Issuer(json.dumps({"keys": published(issuer)}))
    await keys.find(KEY_ID)
    keys.published = rubbish
    monkeypatch.setattr(auth, "MISS_PAUSE_S", 0.0)
    with pytest.raises(NotReady):
        await keys.find("dev-2")
    assert (await keys.find(KEY_ID)).key_id == KEY_ID
    assert keys.asked == 2


async def test_whoever_has_a_known_key_does_not_wait_for_the_issuer(
    issuer: DevIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Issuer(json.dumps({"keys": published(issuer)}))
    await keys.find(KEY_ID)
    monkeypatch.setattr(auth, "MISS_PAUSE_S", 0.0)
    keys.may_answer.clear()
    keeping, waiting = asyncio.ensure_future(keys.keep()), asyncio.ensure_future(keys.find("dev-2"))
    await asyncio.sleep(0)
    assert (await keys.find(KEY_ID)).key_id == KEY_ID
    assert not waiting.done()
    keeping.cancel()
    keys.may_answer.set()
    with pytest.raises(Unauthenticated):
        await waiting
    assert keys.asked == 2


async def test_keys_that_could_not_be_read_again_for_long_are_not_trusted_until_they_are(
    issuer: DevIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, token = Issuer(json.dumps({"keys": published(issuer)})), issuer.token("accounts", ["a"], "ann")
    tokens = auth.Tokens(DEV_ISSUER, "accounts", "sub", keys)
    await tokens.verify(token)
    pass_time(MAX_AGE_S, monkeypatch)
    keys.published, publishes = None, keys.published
    said = r"the keys of https://issuer.example could not be read for 1000 s, .*; fix: .* ONEFOLD_AUTH_JWKS_MAX_AGE_S"
    with pytest.raises(NotReady, match=said):
        await tokens.verify(token)
    keys.published = publishes
    monkeypatch.setattr(auth, "MISS_PAUSE_S", -1.0)
    await tokens.verify(token)


async def test_the_metrics_tell_the_age_of_the_issuers_keys(
    issuer: DevIssuer, own: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, route = issuer.token("accounts", ["operations:read"], "ann"), Route("accounts", "GET", "/metrics")
    assert (await asked(own, route, token)).status_code == 200
    pass_time(MAX_AGE_S, monkeypatch)
    told = (await asked(own, route, token)).text
    (age_s,) = re.findall(r"^onefold_issuer_keys_age_seconds (\S+)$", told, re.MULTILINE)
    assert float(age_s) >= MAX_AGE_S


def pass_time(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    later = elapsed_s() + seconds
    monkeypatch.setattr(auth, "elapsed_s", lambda: later)


async def test_an_issuer_that_is_down_is_asked_once_and_then_left_alone(issuer: DevIssuer) -> None:
    """Anybody can make tokens that name unknown keys, so they must not slow down other requests."""
    keys = Issuer(None)
    found = await asyncio.gather(*(keys.find(f"unknown-{n}") for n in range(20)), return_exceptions=True)
    assert {type(each) for each in found} == {NotReady}
    keys.published = json.dumps({"keys": published(issuer)})
    with pytest.raises(NotReady):
        await keys.find(KEY_ID)
    assert keys.asked == 1


async def test_an_issuer_that_is_back_is_asked_again_after_a_pause(
    issuer: DevIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Issuer(None)
    monkeypatch.setattr(auth, "MISS_PAUSE_S", 0.0)
    with pytest.raises(NotReady):
        await keys.find(KEY_ID)
    keys.published = json.dumps({"keys": published(issuer)})
    assert (await keys.find(KEY_ID)).key_id == KEY_ID
    with pytest.raises(Unauthenticated):
        await keys.find("dev-2")
