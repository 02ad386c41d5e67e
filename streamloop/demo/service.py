"""The sample service: what a team writes. ``streamloop run streamloop.demo.service:loop`` runs it.

Besides handling orders it writes what it handled to a journal, and its status to a file, so that the demo can
show progress and check the sums after a SIGKILL.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from dataclasses import asdict
from pathlib import Path

from streamloop import Message, StreamLoop
from streamloop.demo.orders import SLOW_CUSTOMER, TOPIC, Order

STATUS_EVERY = 0.2

journal_path = os.environ.get("DEMO_JOURNAL", os.devnull)
status_path = os.environ.get("DEMO_STATUS", "")
mended_path = os.environ.get("DEMO_MENDED", "")
"""A file: once it is there the payment service takes every order."""
journal = os.open(journal_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

loop = StreamLoop(
    "billing", commit_interval=0.2, high_watermark_messages=1_000, retry_high_watermark_messages=1_000
)


@loop.consumer(
    TOPIC,
    ordering="key",
    concurrency=100,
    timeout=10,
    in_place_attempts=2,
    backoff_base=0.05,
    retry_topics=["1s", "2s"],
)
async def charge(order: Order, message: Message) -> None:
    """Charge an order; what it does besides is written in the order itself."""
    if (order.fails < 0 and not _is_mended()) or message.attempt <= order.fails:
        raise ConnectionError(f"the payment service refused order {order.id}")
    await asyncio.sleep(0.03 if order.customer == SLOW_CUSTOMER else 0.002)
    os.write(journal, f"{order.id} {message.attempt}\n".encode())


def _is_mended() -> bool:
    return os.path.exists(mended_path)


@loop.on_startup
async def report_status() -> None:
    """Write the status to a file while the service runs."""
    if status_path:
        threading.Thread(target=_write_status, daemon=True).start()


def _write_status() -> None:
    path = Path(status_path)
    partial = path.with_suffix(".partial")
    pause = threading.Event()
    while True:
        status = loop.status()
        if status is not None:
            partial.write_text(json.dumps(asdict(status)))
            partial.replace(path)
        pause.wait(STATUS_EVERY)


@loop.on_shutdown
async def report_last_status() -> None:
    """Write the status once more, after the drain."""
    status = loop.status()
    if status_path and status is not None:
        path = Path(status_path)
        partial = path.with_suffix(".last")
        partial.write_text(json.dumps(asdict(status)))
        partial.replace(path)
