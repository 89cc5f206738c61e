"""What the demo prints at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from demo.books import CONFIRMED
from demo.rules import BY_COURIER_CENTS, DELIVERED
from demo.story import Findings

_LARGEST = 5


def happened(findings: Findings) -> str:
    """Orders by outcome, events, stock, revenue and the largest balances, a line each."""
    books = findings.found.books
    ends = Counter(books.orders.values())
    confirmed, count = ends.pop(CONFIRMED, 0), len(books.orders)
    left = sum(books.items.values())
    revenue, best_day = _dollars(sum(books.days.values())), _largest(books.days, 1)
    return "\n".join(
        [
            f"orders     {count:,} in {findings.seconds:.1f} s with the crash in it, {count / findings.seconds:,.0f}/s",
            f"confirmed  {confirmed:,}",
            *(f"rejected   {times:,} with {code}" for code, times in ends.most_common()),
            f"events     {findings.found.events:,}",
            f"stock      {len(books.items) * DELIVERED - left:,} CDs shipped, {left:,} left",
            f"revenue    {revenue} on {len(books.days)} days, most on {best_day}",
            f"couriers   {len(books.pickups):,} called, one for each order of {_dollars(BY_COURIER_CENTS)} or more",
            f"owe most   {_largest(books.accounts, _LARGEST)}",
        ]
    )


def suggestions(account: str, urls: Mapping[str, str], pid: int, logs: Path) -> str:
    """What to try while everything runs. urls: of one worker of each service; pid: of a worker of orders."""
    order = f"{urls['orders']}/orders/mine"
    body = (
        f'{{"customer_id": "{account}", "placed_at": "1998-07-01T00:00:00Z", '
        '"lines": [{"sku": "sku-001", "quantity": 1, "amount_cents": 1499}]}'
    )
    return f"""\
All of it runs until Ctrl-C. Try
  order a CD          curl {order} -H 'Idempotency-Key: mine' -H 'Content-Type: application/json' -d '{body}'
  the same again      the same answer; nothing is ordered twice
  what came of it     curl '{order}?until=phase:confirmed&wait=10'
  what it costs       curl {urls["accounts"]}/accounts/{account}
  what sells best     curl '{urls["sales"]}/sales/skus?order=-revenue_cents&limit=3'
  kill a worker       kill -9 {pid}
  who owns what       curl {urls["orders"]}/cluster
  the API             {urls["orders"]}/docs
  the logs            {logs}"""


def _largest(cents: Mapping[str, int], count: int) -> str:
    order = sorted(cents.items(), key=lambda found: -found[1])[:count]
    return ", ".join(f"{name} {_dollars(amount)}" for name, amount in order)


def _dollars(cents: int) -> str:
    return f"${cents // 100:,}.{cents % 100:02}"
