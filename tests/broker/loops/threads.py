"""A service whose handler runs in threads, for member processes. What a message does is in its value."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from streamloop import Message, StreamLoop

loop = StreamLoop(commit_interval=0.1, retry_topics=[], in_place_attempts=1, ordering="none")


def line(text: str) -> None:
    """Print a line in one piece, so that no log line comes between it and its end."""
    os.write(1, f"{text}\n".encode())


@loop.consumer("orders")
def handle(order: dict[str, Any], message: Message) -> None:
    """Works for a while, or hangs for good."""
    line(f"begin {message.offset}")
    if order.get("do") == "hang":
        threading.Event().wait()
    time.sleep(order.get("sleep", 0))
    line(f"end {message.offset}")
