"""What the demo says when it is through."""

from __future__ import annotations

from pathlib import Path

from demo.story import Findings

_LARGEST = 5


def happened(findings: Findings) -> str:
    """Commands, events, accounts, refusals and the largest balances, a line each."""
    per_s = findings.commands / findings.seconds
    largest = sorted(findings.accounts.items(), key=lambda found: -found[1].balance_cents)[:_LARGEST]
    return "\n".join(
        [
            f"commands   {findings.commands:,} in {findings.seconds:.1f} s with the crash in it, {per_s:,.0f}/s",
            f"events     {findings.events:,}",
            f"accounts   {len(findings.accounts):,}",
            *(f"refused    {times:,} with {code}" for code, times in findings.refused.items()),
            "owe most   " + ", ".join(f"{customer} {_dollars(found.balance_cents)}" for customer, found in largest),
        ]
    )


def suggestions(account: str, url: str, other_url: str, other_pid: int, logs: Path) -> str:
    """What to try while two workers run, at `url` and `other_url`."""
    pay = (
        f"{url}/accounts/{account}/payments -H 'Idempotency-Key: thanks' "
        """-H 'Content-Type: application/json' -d '{"amount_cents": 100}'"""
    )
    return f"""\
All of it runs until Ctrl-C. Try
  pay a dollar        curl {pay}
  the same again      the same answer; nothing is paid twice
  ask the other       curl {other_url}/accounts/{account}
  kill a worker       kill -9 {other_pid}
  who owns what       curl {url}/cluster
  the API             {url}/docs
  the logs            {logs}"""


def _dollars(cents: int) -> str:
    return f"${cents // 100:,}.{cents % 100:02}"
