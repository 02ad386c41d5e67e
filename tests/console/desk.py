"""Dead letters without Kafka, for tests of the page and its API: what the real desk answers, made up.

Hostile on purpose where a record's writer could be.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from streamloop.errors import StreamLoopError
from streamloop.ops.console.shown import shown_bytes, shown_headers, shown_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamloop.ops.console.jobs import Progress

REFUSED = "9f2c41aa07d3be55"
HOSTILE_MESSAGE = "<script>alert(1)</script> \u202eevil\u202c \x1b[31mred"
NOW = 1_780_000_000.0


def group(fingerprint: str, error: str, message: str, count: int, replayed: int = 0) -> dict[str, Any]:
    return {
        "fingerprint": fingerprint,
        "error_class": shown_text(error),
        "error_message": shown_text(message),
        "written_by": "streamloop",
        "count": count,
        "open": count - replayed,
        "states": {"open": count - replayed, "replayed": replayed},
        "first_seen": NOW - 7_200,
        "last_seen": NOW - 60,
        "original_topics": {"orders": count},
        "groups": {"billing": count},
        "dead_letter_topics": {"orders.billing.dlq": count},
        "sample": {"place": "orders.billing.dlq/0/17"},
    }


class FakeDesk:
    """Counts what it was asked. ``hold``: looks and replays wait for it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.stopped = threading.Event()
        self.fails = ""

    def _work(self, what: str, given: Any, progress: Progress, stop: threading.Event) -> None:
        self.asked.append((what, given))
        if self.fails:
            raise StreamLoopError(self.fails)
        for done in range(1, 4):
            progress({"done": done * 100, "total": 300, "records": done * 100, "seconds": done * 0.1})
        while not self.hold.wait(0.01):
            progress({"done": 299, "total": 300, "records": 299, "seconds": 1.0})
            if stop.is_set():
                self.stopped.set()
                return

    def groups(self, where: Mapping[str, Any], progress: Progress, stop: threading.Event) -> dict[str, Any]:
        self._work("groups", where, progress, stop)
        found = [
            group(REFUSED, "payments.PaymentRefused", "the card of customer 7 was refused", 41, 2),
            group("00aa" * 4, "builtins.ValueError", HOSTILE_MESSAGE, 7),
        ]
        return {
            "groups": found,
            "letters": 48,
            "open": 46,
            "states": {"open": 46, "replayed": 2},
            "others": 0,
            "skipped": 0,
            "complete": not stop.is_set(),
            "topics": ["orders.billing.dlq"],
            "notes": [],
        }

    def letters(
        self, where: Mapping[str, Any], limit: int, progress: Progress, stop: threading.Event
    ) -> dict[str, Any]:
        self._work("letters", where, progress, stop)
        return {
            "letters": [
                {
                    "topic": "orders.billing.dlq",
                    "partition": 0,
                    "offset": 17 + n,
                    "place": f"orders.billing.dlq/0/{17 + n}",
                    "original": f"orders/0/{100 + n}",
                    "key": f"customer-{n}",
                    "state": "open",
                    "attempts": 6,
                    "died_at": NOW - 60 * n,
                    "error_class": "payments.PaymentRefused",
                    "error_message": "the card was refused",
                    "fingerprint": REFUSED,
                }
                for n in range(min(limit, 5))
            ],
            "complete": True,
        }

    def letter(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        self.asked.append(("letter", (topic, partition, offset)))
        if offset >= 1_000:
            raise StreamLoopError(f"{topic}/{partition}/{offset} is past the end of the partition.")
        return {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "place": f"{topic}/{partition}/{offset}",
            "state": "open",
            "entry": "",
            "original": "orders/0/100",
            "group": "billing",
            "written_by": "streamloop",
            "error_class": "payments.PaymentRefused",
            "error_message": shown_text(HOSTILE_MESSAGE),
            "fingerprint": REFUSED,
            "attempts": 6,
            "first_failed_at": NOW - 7_200,
            "died_at": NOW - 60,
            "replay_id": None,
            "replay_count": 0,
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
            "key": shown_bytes(b"customer-7"),
            "value": shown_bytes(b'{"order": 7, "note": "<img src=x onerror=alert(1)>", "amount": 12.50}'),
            "headers": shown_headers(
                [
                    ("tenant", b"north"),
                    ("tenant", b"south"),
                    ("nothing", None),
                    ("bytes", b"\xff\x00\xfe"),
                    ("<b>x</b>", b"<script>alert(2)</script>"),
                ]
            ),
        }

    def preview(
        self,
        where: Mapping[str, Any],
        plan: Mapping[str, Any],
        progress: Progress,
        stop: threading.Event,
    ) -> dict[str, Any]:
        self._work("preview", (dict(where), dict(plan)), progress, stop)
        return {
            "would": 39,
            "target": "orders.billing.replay",
            "counts": {"matched": 41, "would": 39, "already": 2, "expired": 0, "refused": 0},
            "targets": [{"topic": "orders.billing.replay", "count": 39}],
            "notes": [],
        }

    def replay(
        self,
        where: Mapping[str, Any],
        plan: Mapping[str, Any],
        *,
        by: str,
        progress: Progress,
        stop: threading.Event,
    ) -> dict[str, Any]:
        self._work("replay", (dict(where), dict(plan), by), progress, stop)
        record = self.runs()[0]
        return {"run": record, "note": "39 messages were replayed."}

    def runs(self) -> list[dict[str, Any]]:
        return [
            {
                "run": "20260528T200000Z-a1b2c3",
                "kind": "replay",
                "state": "finished",
                "by": "Ada",
                "host": "billing-0",
                "pid": 7,
                "started_at": NOW - 300,
                "heartbeat_at": NOW - 280,
                "ended_at": NOW - 278,
                "described": "fingerprint 9f2c41aa07d3be55",
                "topics": ["orders.billing.dlq"],
                "target": "orders.billing.replay",
                "counts": {"replayed": 39, "already": 2, "expired": 0},
                "outcomes": {"acked": 35, "failed_again": 3, "dead": 1, "unknown": 0},
                "note": "39 messages were replayed.",
                "alive": False,
            }
        ]

    def run(self, run: str, progress: Progress, stop: threading.Event) -> dict[str, Any]:
        self._work("run", run, progress, stop)
        return {"outcomes": {"acked": 38, "dead": 1}, "notes": []}


def wait_for(condition: Any, timeout: float = 10.0) -> Any:
    """Poll until it is true."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come")
