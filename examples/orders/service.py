"""The service: `streamloop run examples.orders.service:loop` is one member of the group `billing`.

Most orders are charged at once, some only after a while, a few never: those end in the dead-letter topic.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from opentelemetry import trace

from streamloop import Message, Reject, StreamLoop

tracer = trace.get_tracer("examples.orders")

loop = StreamLoop("billing")


@dataclass(frozen=True, slots=True)
class Order:
    """An order. declined: how many times its card is refused before it is taken; -1: always."""

    id: int
    customer: str
    amount: int
    declined: int = 0


class CardDeclinedError(Exception):
    """The bank refuses the card, this time."""


@loop.consumer(
    "orders", ordering="key", concurrency=50, timeout="10s", in_place_attempts=2, retry_topics=["5s", "15s"]
)
async def charge(order: Order, message: Message) -> None:
    """Ask the bank for the money, then tell the warehouse."""
    if order.amount <= 0:
        raise Reject(f"order {order.id} has no amount")
    with tracer.start_as_current_span("charge card") as span:  # a child of the message's span
        span.set_attribute("order.id", order.id)
        await asyncio.sleep(random.expovariate(1 / 0.02))  # the bank's answer, not a secret
        if order.declined < 0 or message.attempt <= order.declined:
            raise CardDeclinedError(f"the card of {order.customer} was declined")
    await message.publish("parcels", {"order": order.id, "customer": order.customer}, key=order.customer)
