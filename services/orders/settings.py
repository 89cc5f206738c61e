"""The environment variables of a worker of orders, besides ONEFOLD_*."""

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.orders.topology import DEADLINES


class OrdersSettings(BaseSettings):
    """A field's description is what the error message for a wrong value says."""

    model_config = SettingsConfigDict(env_prefix="ORDERS_", frozen=True)

    deadline_s: Annotated[
        float,
        Field(gt=0, le=86_400, description="seconds until an order asks again: above 0, up to 86400"),
    ] = DEADLINES.delay_s
