"""A service whose handler runs in threads, for member processes. What a message does is in its value."""

from __future__ import annotations

import threading
import time
from typing import Any

from streamloop import Message, StreamLoop

loop = StreamLoop(commit_interval=0.1, retry_topics=[], in_place_attempts=1, ordering="none")


@loop.consumer("orders")
def handle(order: dict[str, Any], message: Message) -> None:
    """Works for a while, or hangs for good."""
    print(f"begin {message.offset}", flush=True)
    if order.get("do") == "hang":
        threading.Event().wait()
    time.sleep(order.get("sleep", 0))
    print(f"end {message.offset}", flush=True)
