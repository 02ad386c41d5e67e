"""A member whose handler makes a span of its own: ``streamloop run tests.broker.loops.traced:loop``.

What becomes of an order is in its value: an amount below 0 is refused by every attempt. The handler yields
between its steps, so that several of them are under way at once.
"""

from __future__ import annotations

import asyncio

from opentelemetry import trace

from streamloop import StreamLoop

tracer = trace.get_tracer("billing's own code")
loop = StreamLoop(commit_interval=0.1, backoff_base=0.01, ordering="none", concurrency=8)


class CardError(Exception):
    """What every attempt fails of."""


@loop.consumer("orders", in_place_attempts=2, retry_topics=["1s"])
async def charge(order: dict[str, int]) -> None:
    """Ask the bank, which takes its time."""
    with tracer.start_as_current_span("ask the bank", record_exception=False) as span:
        span.set_attribute("order", order["id"])
        await asyncio.sleep(0.02)
        if order["amount"] < 0:
            raise CardError("refused")
