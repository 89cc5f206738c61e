"""What `evolve` and projections make."""

from pydantic import BaseModel, ConfigDict


class State(BaseModel):
    """Replaced by its successor, never changed; read from a row as strictly as it was written."""

    model_config = ConfigDict(frozen=True, strict=True)
