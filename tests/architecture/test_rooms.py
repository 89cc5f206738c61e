"""The page of the architecture shows the rooms as they are."""

from tests.architecture.rooms import PAGE, block, drawn


def test_the_graph_of_rooms_is_current() -> None:
    assert block(PAGE.read_text()) == drawn(), "fix: python -m tests.architecture.rooms"
