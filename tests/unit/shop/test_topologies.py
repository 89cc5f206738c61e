"""Services that read each other have equally many partitions, so that one worker owns all topics of a key."""

from dataclasses import replace

import pytest

from services.sales import service as sales
from shared.operations.provision import ProvisionError, load_topologies


@pytest.mark.parametrize("partitions", [4, 16])
def test_a_service_has_as_many_partitions_as_the_services_it_reads(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    topology = replace(sales.SERVICE.topology, partitions=partitions)
    monkeypatch.setattr(sales, "SERVICE", replace(sales.SERVICE, topology=topology))
    with pytest.raises(
        ProvisionError, match=rf"sales has {partitions} .* reads orders\.events\.v1, which has 8; fix: "
    ):
        load_topologies()
