"""The environment variables of the runner of errands, besides ONEFOLD_*. A secret may be in a file: …_FILE names it."""

from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class ErrandsSettings(BaseSettings):
    """A field's description is what the error message for a wrong value says. Without its URL or host, a target is not
    called, and its errands stay pending.
    """

    model_config = SettingsConfigDict(env_prefix="ERRANDS_", frozen=True)

    partner_url: Annotated[str, Field(pattern=r"^(https?://.+)?$", description="a URL that begins with https://")] = ""
    partner_secret: Annotated[
        SecretStr, Field(description="shared with the partner: whsec_ and the Base64 of 24 to 64 random bytes")
    ] = SecretStr("")
    mail_host: Annotated[str, Field(description="the server that takes mail")] = ""
    mail_port: Annotated[int, Field(ge=1, le=65535, description="its port, 1 to 65535")] = 587
    mail_tls: Annotated[bool, Field(description="true for STARTTLS, or false")] = True
    mail_sender: Annotated[str, Field(description="the address that mail comes from")] = ""
    mail_user: Annotated[str, Field(description="who signs in there; empty if nobody has to")] = ""
    mail_password: Annotated[SecretStr, Field(description="that user's password")] = SecretStr("")
