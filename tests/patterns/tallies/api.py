"""The HTTP API of tallies: shows how often, and when last."""

from pydantic import BaseModel

from shared.domain import Instant, Row
from shared.service import Resource
from tests.patterns.tallies.domain.views import Seen
from tests.patterns.tallies.topology import TALLIES


class SeenView(BaseModel):
    key: str
    times: int
    last_at: Instant


def seen_view(key: str, row: Row[Seen]) -> SeenView:
    return SeenView(key=key, **row.state.model_dump())


routes = Resource("/tallies/{key}", TALLIES, seen_view, filters=("times",))
