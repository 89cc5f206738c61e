"""Services that read each other have equally many partitions, so that one worker owns all topics of a key."""

from dataclasses import replace

import pytest

from services.accounts import service as accounts
from services.orders import service as orders
from services.sales import service as sales
from shared.operations.provision import ProvisionError, load_topologies
from shared.topology.topics import Topic


@pytest.mark.parametrize("partitions", [4, 16])
def test_a_service_has_as_many_partitions_as_the_services_it_reads(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    topology = replace(sales.SERVICE.topology, partitions=partitions)
    monkeypatch.setattr(sales, "SERVICE", replace(sales.SERVICE, topology=topology))
    with pytest.raises(
        ProvisionError, match=rf"sales has {partitions} .* reads inventory\.events\.v1, which has 8; fix: "
    ):
        load_topologies()


def test_what_only_a_sink_reads_may_have_another_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes by partitions, not by keys; and neither service could change its number any more."""
    topology = replace(accounts.SERVICE.topology, partitions=4)
    reading = replace(accounts.SERVICE, topology=topology, reads=[Topic("inventory.events.v1")])
    monkeypatch.setattr(accounts, "SERVICE", reading)
    monkeypatch.setattr(orders, "SERVICE", replace(orders.SERVICE, policies=()))  # which reads accounts
    assert topology in load_topologies()
