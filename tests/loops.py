"""Loops with one handler, for tests that run them in the harness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamloop import StreamLoop

if TYPE_CHECKING:
    from collections.abc import Callable


def billing(handler: Callable[..., object], **options: object) -> StreamLoop[None]:
    """A loop of the group 'billing' whose handler 'charge' reads 'orders'."""
    loop: StreamLoop[None] = StreamLoop("billing")
    loop.consumer("orders", name="charge", **options)(handler)  # type: ignore[arg-type]
    return loop
