"""A bare FastAPI endpoint on a worker's own server settings; whatever it is asked for, it answers BENCH_BODY.

BENCH_BODY=json python -m bench.sides.bare
"""

from __future__ import annotations

import asyncio
import os

from fastapi import FastAPI, Response

from shared.http.server import HttpServer
from shared.runtime.settings import load_settings


def api() -> FastAPI:
    body = os.environ["BENCH_BODY"].encode()
    api = FastAPI()
    api.state.closing = asyncio.Event()

    @api.get("/readyz")
    async def ready() -> None:
        """At once."""

    @api.get("/sales/{customer}")
    async def get_sales(customer: str) -> Response:
        return Response(body, media_type="application/json")

    return api


async def main() -> None:
    settings = load_settings()
    async with HttpServer(api(), settings.http_host, settings.http_port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
