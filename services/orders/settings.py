"""What a worker of orders is told by its environment besides ONEFOLD_*."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class OrdersSettings(BaseSettings):
    """deadline_s: how long an order waits for its answers before it asks again."""

    model_config = SettingsConfigDict(env_prefix="ORDERS_", frozen=True)

    deadline_s: Annotated[float, Field(gt=0, le=86_400)] = 30.0
