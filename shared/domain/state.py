"""The base class of what `evolve` and projections return."""

from pydantic import BaseModel, ConfigDict


class State(BaseModel):
    """Never changed, only replaced; read from a row as strictly as it was written.

    A new field needs a default for existing rows. A worker that does not know it parks the key rather than drop it.
    """

    model_config = ConfigDict(frozen=True, strict=True)
