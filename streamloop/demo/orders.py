"""The orders of the demo: what each one will do is in it, so that the sums can be checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC: Final = "orders"
CUSTOMERS: Final = 500
SLOW_CUSTOMER: Final = "customer-slow"
BROKEN: Final = b'{"id": "this is not an order", '


@dataclass(frozen=True, slots=True)
class Order:
    """An order, and how often handling it fails before it succeeds (-1: for ever)."""

    id: int
    customer: str
    amount: int
    fails: int = 0


@dataclass(slots=True)
class Expected:
    """What has to come out at the end."""

    produced: int = 0
    acked: int = 0
    undecodable: int = 0
    failing_for_a_while: int = 0
    failing_for_ever: int = 0
    slow: int = 0

    @property
    def dead(self) -> int:
        """Dead letters."""
        return self.undecodable + self.failing_for_ever


def records(count: int, expected: Expected) -> Iterator[tuple[bytes, bytes]]:
    """``count`` keys and values, the same ones each time; counts what is expected of them."""
    for number in range(count):
        customer = f"customer-{number % CUSTOMERS}"
        fails = 0
        if number % 400 == 13:
            expected.undecodable += 1
            expected.produced += 1
            yield customer.encode(), BROKEN
            continue
        if number % 400 == 57:
            fails = -1
            expected.failing_for_ever += 1
        elif number % 40 == 7:
            # Once: again in place. Twice: through a retry topic. Not more often: a message that is moved out
            # early, because too many wait in place, has one attempt there and one in each retry topic.
            fails = 1 + (number // 40) % 2
            expected.failing_for_a_while += 1
        elif number % 400 == 99:
            customer = SLOW_CUSTOMER
            expected.slow += 1
        if fails >= 0:
            expected.acked += 1
        expected.produced += 1
        order = Order(number, customer, 100 + number % 900, fails)
        yield customer.encode(), orjson.dumps(order)
