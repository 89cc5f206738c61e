"""Services that read each other have equally many partitions, so that one worker owns all topics of a key."""

from dataclasses import replace

import pytest

from services.sales import topology as sales
from shared.operations.provision import ProvisionError, load_topologies


@pytest.mark.parametrize("partitions", [4, 16])
def test_a_service_has_as_many_partitions_as_the_services_it_reads(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr(sales, "TOPOLOGY", replace(sales.TOPOLOGY, partitions=partitions))
    with pytest.raises(
        ProvisionError, match=rf"sales has {partitions} .* reads orders\.events\.v1, which has 8; fix: "
    ):
        load_topologies()
