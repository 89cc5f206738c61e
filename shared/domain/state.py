"""The base class of the states that `evolve` and projections return."""

from pydantic import BaseModel, ConfigDict


class State(BaseModel):
    """The base class of the phases of a state, and of views. A state is never changed, only replaced.

    Rows are read as strictly as they were written: no text is taken for a number. A new field needs a default, which
    counts for rows that are older than it. A worker of a release that does not know a field parks the key, because it
    would drop the field when it writes the row again.
    """

    model_config = ConfigDict(frozen=True, strict=True)
