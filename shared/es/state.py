"""What `evolve` and projections make."""

from pydantic import BaseModel, ConfigDict


class State(BaseModel):
    """Replaced by its successor, never changed; read from a row as strictly as it was written.

    A new field needs a default, for the rows there are; a worker that does not know it stops instead of losing it.
    """

    model_config = ConfigDict(frozen=True, strict=True)
