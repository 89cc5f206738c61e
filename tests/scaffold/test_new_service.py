"""A new service is a copy that passes every check at once; a refused name leaves nothing behind."""

from __future__ import annotations

import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.routing import iter_route_contexts

from services.accounts.topology import TOPOLOGY
from shared.dev import nouns, patterns, renaming, scaffold
from shared.dev.additions import LIST, SCRAPED, forget
from shared.dev.patterns import Foreign
from shared.dev.record import recorded
from shared.dev.replay import redo
from shared.dev.scaffold import new_of_kind, new_service
from shared.dev.stages import StageFailed
from shared.http.api import PAGE, create_api
from shared.http.lists import ListQuery
from shared.runtime.checkout import found_services
from shared.testing.node import MemoryNode
from tests.scaffold.checkout import Checkout

NEWCOMERS = {"accounts": "wallets", "orders": "bookings", "sales": "trends"}
KINDS = {kind: name for kind, name in NEWCOMERS.items() if kind in found_services()}
OF_PATTERNS = {
    "aggregate": ("parcels",),
    "process": ("reminders", "--on", "parcel.created"),
    "projection": ("counts", "--on", "parcel.created"),
    "claim": ("emails",),
    "effect": ("notices",),
}
PORTS = "services/*/deploy/compose.yml"
OPENED = Foreign("account.opened", "accounts.events.v1")
ALL_KINDS = pytest.mark.skipif(KINDS != NEWCOMERS, reason="the shop is removed")


@pytest.mark.long  # in short, test_tutorial makes one, and checks it
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_copy_of_every_kind_passes_its_tests_and_every_check(checkout: Checkout) -> None:
    for kind, name in KINDS.items():
        assert f"created  services/{name}" in checkout.verb("new-service", name, "--like", kind)
    for kind, (name, *on) in OF_PATTERNS.items():
        assert f"created  services/{name}" in checkout.verb("new-service", name, "--kind", kind, *on)
    made = (*KINDS.values(), *(name for name, *_ in OF_PATTERNS.values()))
    folders = [f"{parent}/{name}" for name in made for parent in ("services", "tests/unit")]
    checkout.lint(*folders)
    everywhere = ("tests/architecture", "tests/unit/test_redeclared.py")
    checkout.pytest("-m", "not broker and not slow", "-k", "not door", *folders[1::2], *everywhere)
    assert {*made} < set(found_services(checkout.root))


@pytest.mark.parametrize(
    ("kind", "on"),
    [("aggregate", None), ("process", OPENED), ("projection", OPENED), ("claim", None), ("effect", None)],
)
def test_a_service_is_made_of_a_pattern_whose_names_it_drops_and_made_again(
    kind: str, on: Foreign | None, checkout: Checkout
) -> None:
    before = checkout.files()
    made = new_of_kind(checkout.root, "parcels", kind, on)
    after = checkout.files()
    ours = [item for item in after.items() if item[0].startswith(made.folders)]
    theirs = re.compile(r"tests.patterns|(?<![a-z])things?\b|tall(?:y|ies)|(?i:followup|nickname|errand)|Thing|THING")
    assert len(ours) > 10
    assert [found for path, content in ours for found in theirs.findall(f"{path} {content.decode()}")] == []
    assert {path for path in before if before[path] != after[path]} == {*made.additions} == {LIST, SCRAPED}
    step = {"verb": "new-service", "name": "parcels", "kind": kind}
    redo(checkout.root, step | ({"on": on.event, "topic": on.topic} if on else {}))
    assert checkout.files() == after
    forget(checkout.root, "parcels")
    assert checkout.files() == before


def test_two_services_that_are_made_at_once_have_ports_and_lines_of_their_own(checkout: Checkout) -> None:
    names = ["parcels", "crates"]
    with ThreadPoolExecutor() as pool:
        made = [*pool.map(lambda name: new_of_kind(checkout.root, name, "aggregate"), names)]
    assert len({each.additions[LIST].split("ports ")[1] for each in made}) == 2
    for list_ in (LIST, SCRAPED):
        assert [name for name in names if name in (checkout.root / list_).read_text()] == names


def test_what_a_process_is_told_is_an_event_of_another_service(untouched: Checkout) -> None:
    assert patterns.foreign(untouched.root, "process", "account.opened") == OPENED
    for kind, on, reason in (
        ("process", None, "a process is told of another service's event"),
        ("projection", "account.moved", r"there is no event account\.moved"),
        ("process", "account.charged", r"there is no event account\.charged"),  # it has two versions
        ("aggregate", "account.opened", "a new aggregate is told of no other"),
    ):
        with pytest.raises(StageFailed, match=reason):
            patterns.foreign(untouched.root, kind, on)


def test_what_is_told_of_another_service_has_as_many_partitions(checkout: Checkout) -> None:
    """Else nothing could be provisioned, nor any worker be started."""
    accounts = checkout.root / "services" / "accounts" / "topology.py"
    accounts.write_text(accounts.read_text().replace("history=EVENTS)", "history=EVENTS, partitions=12)"))
    forget(checkout.root, "orders")
    for kind, name in (("process", "reminders"), ("projection", "counts")):
        checkout.verb("new-service", name, "--kind", kind, "--on", "account.opened")
        assert 'topic = "accounts.events.v1"\npartitions = "12"\n' in (checkout.root / "onefold.toml").read_text()
        checkout.run(sys.executable, "-c", "from shared.operations.provision import *; load_topologies()")
        made = checkout.files()
        redo(checkout.root, recorded(checkout.root).steps[-1])
        assert checkout.files() == made


def test_a_kind_or_a_service_to_copy_has_to_be_named(untouched: Checkout) -> None:
    assert "--kind aggregate" in untouched.verb("new-service", "parcels", expect=1)
    both = untouched.verb("new-service", "parcels", "--like", "accounts", "--kind", "aggregate", expect=1)
    assert "--like copies a service as it is" in both


def test_a_copy_that_is_removed_leaves_nothing(checkout: Checkout) -> None:
    before = checkout.files()
    for kind, name in KINDS.items():
        new_service(checkout.root, name, kind)
        forget(checkout.root, name)
    assert checkout.files() == before


@pytest.mark.parametrize(("kind", "word"), [("accounts", "account"), ("sales", "sales")])
def test_nothing_of_the_old_name_is_left(checkout: Checkout, kind: str, word: str) -> None:
    if kind not in KINDS:
        pytest.skip("the shop is removed")
    made = new_service(checkout.root, KINDS[kind], kind)
    ours = [item for item in checkout.files().items() if item[0].startswith(made.folders)]
    assert len(ours) > 10
    assert [path for path, content in ours if word in path.lower() or word in content.decode().lower()] == []


@ALL_KINDS
def test_names_that_belong_to_other_services_are_kept(checkout: Checkout) -> None:
    new_service(checkout.root, "bookings", "orders")
    there, here = (checkout.root / "services" / name for name in ("orders", "bookings"))
    for module in ("accounts", "inventory"):
        theirs, ours = (
            (folder / "contracts" / f"{module}.py").read_text().splitlines()[1:] for folder in (there, here)
        )
        assert ours == theirs
    kept = re.findall(r"\w*order\w*", re.sub(r"ordered_on", "", (here / "policies.py").read_text()), re.IGNORECASE)
    assert set(kept) == {"ChargeOrder", "OrderCharged", "RefundOrder", "SettleOrder", "order_id"}


@ALL_KINDS
def test_a_lists_filter_is_renamed_with_its_index(checkout: Checkout) -> None:
    there = checkout.root / "services" / "orders"
    for file, old, new in (
        ("topology.py", 'indexes=("phase"', 'indexes=("order_kind", "phase"'),
        ("api.py", 'filters=("phase"', 'filters=("order_kind", "phase"'),
    ):
        changed = (there / file).read_text().replace(old, new)
        assert new in changed
        (there / file).write_text(changed)
    new_service(checkout.root, "bookings", "orders")
    here = checkout.root / "services" / "bookings"
    assert 'indexes=("booking_kind", ' in (here / "topology.py").read_text()
    assert 'filters=("booking_kind", "phase"' in (here / "api.py").read_text()


@ALL_KINDS
def test_the_parameters_of_a_list_with_routes_by_hand_are_kept(checkout: Checkout) -> None:
    imported, declared = "from shared.http.lists import ListQuery", "(ListQuery):\n    order: str\n"
    by_hand = checkout.root / "services" / "orders" / "lists.py"
    by_hand.write_text(f"{imported}\n\n\nclass OrderList{declared}    order_kind: str\n")
    new_service(checkout.root, "bookings", "orders")
    copy = (checkout.root / "services" / "bookings" / "lists.py").read_text()
    assert f"class BookingList{declared}    booking_kind: str\n" in copy


def test_the_parameters_of_every_list_are_known() -> None:
    assert {*ListQuery.model_fields} == renaming._LIST_PARAMETERS


def test_a_noun_is_renamed_as_a_word_and_as_a_part_of_a_name() -> None:
    rename = renaming.renaming({"orders": "invoices", "order": "invoice"})
    assert rename("PlaceOrder order_id ORDERS_S OrdersSettings /orders") == (
        "PlaceInvoice invoice_id INVOICES_S InvoicesSettings /invoices"
    )
    assert rename("border reordered ordered_on Ordered") == "border reordered ordered_on Ordered"
    shorter = renaming.renaming({"orders": "bookings", "order": "booking"})
    assert shorter("An order, an order's line, test_an_order_is_placed") == (
        "A booking, a booking's line, test_a_booking_is_placed"
    )


@pytest.mark.parametrize(
    ("plural", "singular"),
    [("bookings", "booking"), ("deliveries", "delivery"), ("boxes", "box"), ("passes", "pass"), ("prices", "price")],
)
def test_the_singular_of_a_plural(plural: str, singular: str) -> None:
    assert nouns._singular_of(plural) == singular


@pytest.mark.parametrize("plural", ["billing", "staff", "status", "address", "basis", "statuses", "buses"])
def test_new_service_asks_for_a_singular_that_it_cannot_derive(plural: str, untouched: Checkout) -> None:
    with pytest.raises(StageFailed, match="what is the singular of"):
        new_service(untouched.root, plural, "accounts")


REFUSED = [
    ("Bookings", None, "not a name for a service"),
    ("2wallets", None, "not a name for a service"),
    ("gift_cards", None, "not a name for a service"),
    ("gift-cards", None, "not a name for a service"),
    ("../wallets", None, "not a name for a service"),
    ("", None, "not a name for a service"),
    ("wallets", "a wallet", "not a name for a service"),
    ("wallets", "wallets", "what is the singular of wallets"),
    ("class", None, "class is reserved"),
    ("match", None, "match is reserved"),
    ("returns", None, "return is reserved"),
    ("lists", None, "list is reserved"),
    ("json", None, "json is reserved"),
    ("pydantic", None, "pydantic is reserved"),
    ("shared", None, "shared is reserved"),
    ("onefold", None, "onefold is reserved"),
    ("metrics", None, "every worker answers at /metrics"),
    ("cluster", "node", "every worker answers at /cluster"),
    ("ui", "us", "every worker answers at /ui"),
    ("operations", None, "operators have its scopes"),
    ("chapters", None, "the engine keeps a table of that name"),
    ("parked", "lot", "the engine keeps a table of that name"),
    ("peers", None, r"peers is taken: it is in compose\.secure\.yml"),
    ("accounts", None, "accounts is taken"),
    ("account", None, "account is taken"),
    ("ledgers", "account", "account is taken"),
    ("holders", "held", "already uses .*held"),
    ("bills", "command", "already uses .*command"),
]


@pytest.mark.parametrize(("name", "singular", "reason"), REFUSED)
def test_an_unusable_name_is_refused_and_changes_nothing(
    name: str, singular: str | None, reason: str, untouched: Checkout
) -> None:
    before = untouched.files()
    with pytest.raises(StageFailed, match=reason):
        new_service(untouched.root, name, "accounts", singular)
    assert untouched.files() == before


def test_the_routes_of_every_worker_are_reserved_names() -> None:
    own = create_api(MemoryNode(TOPOLOGY, []), lambda *_: ())
    paths = {context.path.split("/")[1] for context in iter_route_contexts(own.routes) if context.path}
    assert {path for path in {*paths, "changes", PAGE[1:]} if path.isalnum()} == set(nouns._OWN_ROUTES)


@pytest.mark.parametrize("module", ["topology", "service"])
def test_a_name_whose_topics_another_service_names_is_refused(checkout: Checkout, module: str) -> None:
    with (checkout.root / "services" / "accounts" / f"{module}.py").open("a") as topology:
        topology.write('\nLEDGER = Topic("ledgers.events.v1")\n')
    with pytest.raises(StageFailed, match=rf"topics of ledgers are named in services/accounts/{module}\.py"):
        new_service(checkout.root, "ledgers", "accounts")


@pytest.mark.long  # in short, tests/unit/dev/test_schemas
def test_the_messages_of_a_copy_are_not_accepted_yet(checkout: Checkout) -> None:
    """They are about to change; and a change of what a team has accepted is told."""
    new_service(checkout.root, "wallets", "accounts")
    assert "no schemas are accepted yet of wallets" in checkout.verb("schemas")
    assert "wrote   services/wallets/schemas.json" in checkout.verb("schemas", "wallets", "--accept")
    events = checkout.root / "services" / "wallets" / "domain" / "events.py"
    events.write_text(events.read_text().replace("amount_cents: int", "amount_cents: int\n    note: str"))
    said = checkout.verb("schemas", expect=1)
    assert "wallets is not as in services/wallets/schemas.json:" in said
    assert "forward     event wallet.payment_received, note: is new, and has no default" in said
    refused = checkout.verb("schemas", "--accept", expect=1)
    assert "wallets would not read what was written before" in refused
    assert "Traceback" not in refused


def test_an_unknown_kind_is_refused_with_the_list_of_services(untouched: Checkout) -> None:
    said = untouched.verb("new-service", "wallets", "--like", "nothing", expect=1)
    assert "no service is called nothing" in said
    assert ", ".join(found_services(untouched.root)) in said
    assert "Traceback" not in said


def test_a_service_without_tests_but_with_desktop_files_is_copied(checkout: Checkout) -> None:
    shutil.rmtree(checkout.root / "tests" / "unit" / "accounts")
    (checkout.root / "services" / "accounts" / ".DS_Store").write_bytes(b"\xff\x00")
    assert new_service(checkout.root, "wallets", "accounts").folders == ("services/wallets",)
    assert (checkout.root / "services" / "wallets" / "app.py").exists()
    assert not (checkout.root / "services" / "wallets" / ".DS_Store").exists()


def test_a_service_of_which_a_message_would_keep_its_name_is_not_copied(checkout: Checkout) -> None:
    """Readers could not tell its messages from those of the copy."""
    events = checkout.root / "services" / "accounts" / "domain" / "events.py"
    events.write_text(events.read_text().replace('"account.closed"', '"gift_card.closed"'))
    before = checkout.files()
    with pytest.raises(StageFailed, match="accounts has messages called gift_card"):
        new_service(checkout.root, "wallets", "accounts")
    assert checkout.files() == before


def test_the_messages_of_effects_are_known_by_the_call_that_makes_them(checkout: Checkout) -> None:
    new_of_kind(checkout.root, "notices", "effect")
    with pytest.raises(StageFailed, match="notice is taken"):
        new_service(checkout.root, "ledgers", "accounts", "notice")
    assert new_service(checkout.root, "letters", "notices").words == {"notices": "letters", "notice": "letter"}
    assert 'effect_service("letters", "letter", ' in (checkout.root / "services" / "letters" / "service.py").read_text()


def test_a_noun_of_two_words_is_one() -> None:
    assert renaming._WIRE_NAME.findall('    TYPE = "gift_card.open"\n') == ["gift_card"]
    rename = renaming.renaming({"cards": "wallets", "gift_card": "wallet"})
    assert rename("OpenGiftCard gift_card.open GIFT_CARD") == "OpenWallet wallet.open WALLET"


def test_a_file_that_is_no_text_is_copied_as_it_is(checkout: Checkout) -> None:
    picture = b"\x89PNG\r\n\x1a\n\x00\xff accounts"
    (checkout.root / "services" / "accounts" / "accounts.png").write_bytes(picture)
    new_service(checkout.root, "wallets", "accounts")
    assert (checkout.root / "services" / "wallets" / "wallets.png").read_bytes() == picture


@pytest.mark.parametrize("step", ["_tidy", "_move"])
def test_a_copy_interrupted_midway_leaves_nothing(
    step: str, checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = checkout.files()
    monkeypatch.setattr(scaffold, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        new_service(checkout.root, "wallets", "accounts")
    assert checkout.files() == before


def test_either_every_folder_is_moved_or_none(tmp_path: Path) -> None:
    (tmp_path / "staged" / "services" / "wallets").mkdir(parents=True)
    (tmp_path / "root" / "services").mkdir(parents=True)
    with pytest.raises(FileNotFoundError):
        scaffold._move(tmp_path / "staged", tmp_path / "root", ["services/wallets", "tests/unit/wallets"], {})
    assert list((tmp_path / "root" / "services").iterdir()) == []


def test_a_new_service_is_run_and_scraped_as_the_one_that_it_copies_on_ports_of_its_own(checkout: Checkout) -> None:
    there, here = (checkout.root / "services" / name / "deploy" for name in ("accounts", "wallets"))
    with (there / "compose.yml").open("a") as composed:
        composed.write("    mem_limit: 1g\n")
    last = max(re.findall(r"-(\d+)\}", " ".join(path.read_text() for path in checkout.root.glob(PORTS))))
    ports = f"{int(last) + 1}-{int(last) + 10}"
    before = checkout.files()
    made = new_service(checkout.root, "wallets", "accounts")
    assert made.additions == {LIST: f"wallets, on host ports {ports}", SCRAPED: "wallets"}
    after = checkout.files()
    assert {path for path, text in before.items() if after[path] != text} == {LIST, SCRAPED}
    for file in there.iterdir():
        text = file.read_text().replace("accounts", "wallets").replace("ACCOUNTS", "WALLETS")
        assert (here / file.name).read_text() == text.replace("8100-8109", ports)


def test_a_service_that_compose_does_not_run_is_copied_as_it_is(checkout: Checkout) -> None:
    shutil.rmtree(checkout.root / "services" / "accounts" / "deploy")
    assert new_service(checkout.root, "wallets", "accounts").additions == {}
