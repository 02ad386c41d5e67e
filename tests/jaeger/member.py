"""A member that refuses every order: `streamloop run tests.jaeger.member:loop`, told the rest by settings."""

from streamloop import StreamLoop

loop: StreamLoop[None] = StreamLoop("billing")


class CardError(Exception):
    """What every attempt fails of."""


@loop.consumer("orders", in_place_attempts=2, retry_topics=("1s",), backoff_base=0.01)
async def charge(order: dict[str, int]) -> None:
    """Refuse the orders with an amount below 0."""
    if order["amount"] < 0:
        raise CardError("refused")
