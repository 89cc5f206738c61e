"""What one more confirmed order changes, in sentences."""

from datetime import UTC, date, datetime, timedelta

import pytest

from services.sales.contracts.orders import Line, OrderConfirmed
from services.sales.domain.events import Counted
from services.sales.domain.insights import Insight
from services.sales.domain.rfm import Rfm, score
from services.sales.domain.views import Customer, DaySales, Item, Ordered, Totals
from services.sales.domain.windows import GRACE
from services.sales.projections import PROJECTIONS, by_customer, by_day, by_hour, by_line, by_sku, named_line
from services.sales.topology import CUSTOMERS, DAYS, HOURS, INSIGHTS, ORDERED, SKUS
from shared.domain import EventEnvelope
from shared.testing.scenario import ViewScenario, happened

sku, day, hour, customer, insight, line = (
    ViewScenario(PROJECTIONS, each) for each in (SKUS, DAYS, HOURS, CUSTOMERS, INSIGHTS, ORDERED)
)

SATURDAY = datetime(1997, 1, 18, 9, 30, tzinfo=UTC)
DAY_ENDS = datetime(1997, 1, 19, tzinfo=UTC)
ABBA = Line(sku="abba", quantity=2, amount_cents=2000)
BACH = Line(sku="bach", quantity=1, amount_cents=999)


def confirmed(placed_at: datetime = SATURDAY, told_at: datetime | None = None) -> EventEnvelope[OrderConfirmed]:
    order = OrderConfirmed(customer_id="ann", lines=(ABBA, BACH), placed_at=placed_at)
    return happened(order, aggregate_id="o-1", sequence=3, occurred_at=told_at or placed_at)


def test_an_order_counts_for_each_of_its_skus_and_once_for_its_day_hour_and_customer() -> None:
    event = confirmed()
    assert by_sku(event) == ["abba", "bach"]
    assert by_day(event) == ["1997-01-18"]
    assert by_hour(event) == ["sat-09"]
    assert by_customer(event) == ["ann"]


def test_a_sku_counts_its_own_line_only() -> None:
    sku("abba", confirmed()).shows(Totals(orders=1, units=2, revenue_cents=2000))
    sku("bach", confirmed(), confirmed()).shows(Totals(orders=2, units=2, revenue_cents=1998))


def test_an_hour_of_the_week_counts_the_whole_order_however_late() -> None:
    later = confirmed(told_at=SATURDAY + timedelta(days=100))
    hour("sat-09", later).shows(Totals(orders=1, units=3, revenue_cents=2999))


@pytest.mark.parametrize("told_at", [SATURDAY - timedelta(days=1), SATURDAY, DAY_ENDS, DAY_ENDS + GRACE])
def test_inside_the_grace_an_order_changes_its_day(told_at: datetime) -> None:
    day("1997-01-18", confirmed(told_at=told_at)).shows(DaySales(orders=1, units=3, revenue_cents=2999))


def test_after_the_grace_an_order_is_counted_as_late() -> None:
    late = confirmed(told_at=DAY_ENDS + GRACE + timedelta(microseconds=1))
    day("1997-01-18", confirmed(), late).shows(
        DaySales(orders=1, units=3, revenue_cents=2999, late=Totals(orders=1, units=3, revenue_cents=2999))
    )


@pytest.mark.parametrize("placed_at", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_the_first_and_the_last_day_there_are_have_an_end_too(placed_at: datetime) -> None:
    day("a day", confirmed(placed_at)).shows(DaySales(orders=1, units=3, revenue_cents=2999))


def test_a_customers_first_and_last_day_do_not_depend_on_the_order_of_events() -> None:
    told = [confirmed(SATURDAY + timedelta(days=days)) for days in (3, 0, 7)]
    customer("ann", *told).shows(
        Customer(orders=3, total_cents=3 * 2999, first_order_on=date(1997, 1, 18), last_order_on=date(1997, 1, 25))
    )


@pytest.mark.parametrize(
    ("days", "orders", "total_cents", "expected"),
    [
        (0, 1, 0, Rfm(5, 1, 1)),
        (30, 2, 2500, Rfm(5, 2, 2)),
        (31, 3, 4999, Rfm(4, 3, 2)),
        (180, 9, 10000, Rfm(3, 4, 4)),
        (366, 10, 25000, Rfm(1, 5, 5)),
        (-1, 1, 2499, Rfm(5, 1, 1)),
    ],
)
def test_a_customer_is_scored_from_1_to_5(days: int, orders: int, total_cents: int, expected: Rfm) -> None:
    on = date(1997, 1, 18)
    profile = Customer(orders=orders, total_cents=total_cents, first_order_on=on, last_order_on=on)
    assert score(profile, on + timedelta(days=days)) == expected


def test_the_latest_figures_are_shown() -> None:
    before = happened(Counted(kind="segment", figures={"segment": "lost"}))
    figures: dict[str, str | int | float] = {"segment": "lost", "customers": 9, "share": 0.5}
    july = datetime(1998, 7, 1, tzinfo=UTC)
    insight("segment:lost", before, happened(Counted(kind="segment", figures=figures), occurred_at=july)).shows(
        Insight(kind="segment", figures=figures, counted_at=july)
    )


def test_a_line_of_an_order_is_shown_with_the_name_of_its_item() -> None:
    event = confirmed()
    first, second = (Ordered(order_id="o-1", **each.model_dump()) for each in (ABBA, BACH))
    keys = by_line(event)
    line(keys[0], event).shows(first)
    line(keys[1], event).shows(second)
    assert named_line(first, Item(name="Gold"), keys[0]).name == "Gold"
    assert named_line(first, None, keys[0]).name == ""
