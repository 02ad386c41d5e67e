"""A member that refuses orders as long as its bank is down: `streamloop run tests.broker.apps.cashier:loop`.

What calls it: the tests of the console, each in processes of its own. CASHIER_TOPIC names the topic, and the
bank is up when the file BANK_IS_UP exists.
"""

import os

from streamloop import Message, Reject, StreamLoop

loop: StreamLoop[None] = StreamLoop()
BANK = os.environ.get("BANK_IS_UP", "bank")


class PaymentRefusedError(Exception):
    """What every attempt fails of while the bank is down."""


@loop.consumer(
    os.environ.get("CASHIER_TOPIC", "orders"),
    in_place_attempts=2,
    retry_topics=("1s",),
    backoff_base=0.01,
    permanent=[PaymentRefusedError],
)
async def charge(order: dict[str, object], message: Message) -> None:
    """Charge the order, or refuse it."""
    if order.get("text"):
        raise Reject(str(order["text"]))
    if order.get("flaky") and message.attempt < 4:
        raise ConnectionError("the bank does not answer")
    if order.get("bank") and not os.path.exists(BANK):  # noqa: ASYNC240 - a moment
        raise PaymentRefusedError(f"the bank refused the card of customer {order['customer']}")
