"""The expected outcome of the whole file, whatever the order of its purchases."""

from __future__ import annotations

from collections import Counter

from demo.books import expected_books
from demo.cdnow import read_purchases
from demo.rules import DELIVERED, SKUS, refusal_of


def test_most_purchases_are_confirmed_and_the_rest_refused_for_two_reasons() -> None:
    purchases = read_purchases()
    books = expected_books(purchases)
    assert Counter(books.orders.values()) == {
        "confirmed": 66_272,
        "account.order_limit_exceeded": 2_778,
        "inventory.discontinued": 609,
    }
    assert (len(books.accounts), len(books.items), len(books.days), len(books.pickups)) == (23_570, 200, 546, 849)
    assert books.items.keys() == set(SKUS)
    assert all(0 <= left < DELIVERED for left in books.items.values())
    assert sum(books.accounts.values()) == sum(books.days.values())


def test_the_order_of_the_purchases_changes_nothing() -> None:
    purchases = read_purchases()
    assert expected_books(reversed(purchases)) == expected_books(purchases)


def test_refused_purchases_move_neither_money_nor_stock() -> None:
    refused = [purchase for purchase in read_purchases() if refusal_of(purchase)]
    books = expected_books(refused)
    assert set(books.accounts.values()) == {0}
    assert set(books.items.values()) == {DELIVERED}
    assert books.days == {}
