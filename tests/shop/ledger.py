"""Where every piece and every cent is after each event that a reader has read, causes before their effects."""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from services.accounts import topology as accounts
from services.inventory import topology as inventory
from services.orders import topology as orders
from shared.runtime.positions import Place
from tests.faults.log import Arrived

Message = Mapping[str, Any]
Thing = tuple[str, str]
"""`stock` and a SKU, or `account` and a customer."""

MESSAGES = {topic.name for each in (accounts, inventory, orders) for topic in (each.COMMANDS, each.EVENTS)}
ITEMS = inventory.TOPOLOGY.changelog(inventory.ITEMS).name
ACCOUNTS = accounts.TOPOLOGY.changelog(accounts.ACCOUNTS).name

OUTSIDE, THERE, HELD, GONE = "outside", "there", "held", "gone"
MOVES = {
    "stock.received": (OUTSIDE, THERE),
    "stock.reserved": (THERE, HELD),
    "stock.released": (HELD, THERE),
    "stock.shipped": (HELD, GONE),
    "account.order_charged": (OUTSIDE, HELD),
    "account.order_refunded": (HELD, OUTSIDE),
    "account.order_settled": (HELD, GONE),
}
ENDS = {"confirmed", "rejected", "cancelled"}
TAKES, GIVES_BACK = {"stock.shipped", "account.order_settled"}, {"stock.released", "account.order_refunded"}


class Places(NamedTuple):
    """All of a thing that came in, that is held for orders, and that is gone: shipped, or owed."""

    came: int
    held: int
    gone: int


class Ledger:
    """Pieces and cents, each in one place at any time. after: the places of each thing after each of its events."""

    def __init__(self) -> None:
        self.after: dict[Thing, list[Places]] = defaultdict(lambda: [Places(0, 0, 0)])
        self.confirmed: set[str] = set()
        self._given_up: set[str] = set()
        self._wanted: dict[str, Counter[Thing]] = {}
        self._at: dict[Thing, Counter[str]] = defaultdict(Counter)
        self._held = Counter[tuple[Thing, str]]()

    def enter(self, event: Message) -> Iterator[str]:
        """What is wrong with the event, or after it."""
        service, _, what = event["type"].partition(".")
        if service == "order":
            yield from self._enter_order(what, f"orders:{event['aggregate_id']}", event["data"])
            return
        thing = service, event["aggregate_id"]
        if event["type"] in MOVES:
            yield from self._move(event["type"], thing, event["data"])
        at = self._at[thing]
        self.after[thing].append(Places(-at[OUTSIDE], at[HELD], at[GONE]))

    def _enter_order(self, what: str, order: str, data: Message) -> Iterator[str]:
        if what in ENDS and (order in self.confirmed or order in self._given_up):
            yield f"{order} is {what} after it has ended"
        match what:
            case "placed":
                pieces = {("stock", line["sku"]): line["quantity"] for line in data["lines"]}
                cents = sum(line["amount_cents"] for line in data["lines"])
                self._wanted[order] = Counter({**pieces, ("account", data["customer_id"]): cents})
            case "rejected" | "cancelled":
                self._given_up.add(order)
            case "confirmed":
                self.confirmed.add(order)
                for thing, amount in self._wanted[order].items():
                    if self._held[thing, order] != amount:
                        yield f"{order} is confirmed with {self._held[thing, order]} of {thing} instead of {amount}"

    def _move(self, kind: str, thing: Thing, data: Message) -> Iterator[str]:
        order, amount = data.get("order_id", ""), data.get("quantity", data.get("amount_cents"))
        source, target = MOVES[kind]
        self._at[thing].update({source: -amount, target: amount})
        self._held[thing, order] += {target: amount, source: -amount}.get(HELD, 0)
        if self._held[thing, order] < 0 or (source != OUTSIDE and self._at[thing][source] < 0):
            yield f"{kind} of {amount} for {order}: {thing} has {dict(self._at[thing])}"
        if (kind in TAKES and order not in self.confirmed) or (kind in GIVES_BACK and order not in self._given_up):
            yield f"{kind} of {thing} for {order}, which has not ended so"


def wrong_moves(arrived: Sequence[Arrived]) -> Iterator[str]:
    """Everything that a reader must never see: at any moment, in any row, or for ever without its cause."""
    ledger = Ledger()
    messages, left = by_cause(arrived)
    for message in messages:
        if "event_id" in message:
            yield from ledger.enter(message)
    for message in left:
        yield f"without its cause, or behind such a message: {message}"
    yield from _wrong_rows(ledger, arrived)


def by_cause(arrived: Iterable[Arrived]) -> tuple[list[Message], list[Message]]:
    """Commands and events as they were read, but each after its cause and in its partition's order; and what is left.

    A reader of many partitions gets some effects first: these wait.
    """
    known: set[str | None] = {None}
    ordered: list[Message] = []
    queues: dict[Place, deque[Message]] = defaultdict(deque)
    for place, read in arrived:
        if place.topic in MESSAGES:
            queues[place].append(json.loads(read.value or b""))
            for message in _ready(queues, known):
                known.add(message.get("event_id") or message["command_id"])
                ordered.append(message)
    return ordered, [message for queue in queues.values() for message in queue]


def _ready(queues: Mapping[Place, deque[Message]], known: set[str | None]) -> Iterator[Message]:
    """Takes the messages whose causes are known, also those that become known meanwhile."""
    found = True
    while found:
        found = False
        for queue in queues.values():
            while queue and queue[0].get("causation_id") in known:
                found = True
                yield queue.popleft()


def _wrong_rows(ledger: Ledger, arrived: Iterable[Arrived]) -> Iterator[str]:
    """Rows that are not the places of their thing after as many events as they have."""
    for (topic, _), read in arrived:
        if topic not in (ITEMS, ACCOUNTS):
            continue
        row, name = json.loads(read.value or b""), (read.key or b"").decode()
        after = ledger.after["stock" if topic == ITEMS else "account", name]
        places = after[row["sequence"]] if row["sequence"] < len(after) else None
        if places is None or not _shows(row["state"], places):
            yield f"row of {name}: {row} with {places}"


def _shows(state: Message, places: Places) -> bool:
    """Whether what came is what the row has and what is gone, or is owed."""
    match state["phase"]:
        case "listed":
            held, there = sum(state["reservations"].values()), state["physical"]
            return places == Places(there + places.gone, held, places.gone) and held == state["reserved"]
        case "open":
            held, owed = sum(state["held"].values()), state["balance_cents"]
            return places == Places(held + owed, held, owed)
    return places == Places(0, 0, 0)
