"""The environment variables of the runner of pickups, besides ONEFOLD_*. A secret may be in a file: …_FILE names it."""

from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class PickupsSettings(BaseSettings):
    """A field's description is what the error message for a wrong value says. Without its URL, the courier is not
    called, and pickups stay pending.
    """

    model_config = SettingsConfigDict(env_prefix="PICKUPS_", frozen=True)

    courier_url: Annotated[str, Field(pattern=r"^(https?://.+)?$", description="a URL that begins with https://")] = ""
    courier_secret: Annotated[
        SecretStr, Field(description="shared with the courier: whsec_ and the Base64 of 24 to 64 random bytes")
    ] = SecretStr("")
