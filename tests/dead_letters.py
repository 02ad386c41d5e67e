"""Dead letters for tests that need no broker: Messages with the headers of each program that writes some.

Called by the tests of what reads dead letters.
"""

from __future__ import annotations

import struct
from typing import Any

from confluent_kafka import Message

from streamloop.dlq.letter import DeadLetter, letter_of
from streamloop.engine.retry import Failure, Kind
from streamloop.kafka import headers as hd

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
STAMP_MS = 1_796_070_000_000
"""2026-11-30T20:20:00Z."""
DLQ = "orders.billing.dlq"


def message(
    headers: Any = (),
    value: bytes | None = b"value",
    key: bytes | None = b"key",
    *,
    topic: str = DLQ,
    partition: int = 0,
    offset: int = 17,
    stamp_ms: int | None = STAMP_MS,
) -> Message:
    """A record of a dead-letter topic."""
    return Message(
        topic=topic,
        partition=partition,
        offset=offset,
        key=key,
        value=value,
        headers=list(headers),
        timestamp=(1, stamp_ms) if stamp_ms is not None else (0, -1),
    )


def own_headers(
    error_class: str = "shop.errors.Declined",
    error_message: str = "card 7 was declined",
    fingerprint: str = "00aa11bb22cc33dd",
    *,
    original: tuple[str, int, int] = ("orders", 3, 1042),
    group: str = "billing",
    attempt: int = 6,
    now_ms: int = STAMP_MS,
    user: Any = (("traceparent", TRACEPARENT),),
) -> hd.RawHeaders:
    """The headers of a dead letter as a member writes them."""
    return hd.route_headers(
        list(user),
        target=hd.Target.DEAD,
        routing=None,
        source=hd.Coordinates(*original, now_ms - 60_000),
        failure=Failure(Kind.TRANSIENT, error_class, error_message, fingerprint),
        group=group,
        attempt=attempt,
        now_ms=now_ms,
    )


def own(
    offset: int = 17, *, value: bytes | None = b"value", key: bytes | None = b"key", **what: Any
) -> DeadLetter:
    """A letter as a member writes it."""
    place = {name: what.pop(name) for name in ("topic", "partition") if name in what}
    stamp = what.get("now_ms", STAMP_MS)
    return letter_of(message(own_headers(**what), value, key, offset=offset, stamp_ms=stamp, **place))


SPRING: hd.RawHeaders = [
    ("user", b"kept"),
    ("kafka_dlt-original-topic", b"shop"),
    ("kafka_dlt-original-partition", struct.pack(">i", 3)),
    ("kafka_dlt-original-offset", struct.pack(">q", 77)),
    ("kafka_dlt-original-timestamp", struct.pack(">q", STAMP_MS - 5_000)),
    ("kafka_dlt-original-timestamp-type", b"CreateTime"),
    ("kafka_dlt-original-consumer-group", b"shop-group"),
    ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
    ("kafka_dlt-exception-cause-fqcn", b"java.lang.IllegalStateException"),
    ("kafka_dlt-exception-message", b"Listener failed; no stock"),
    ("kafka_dlt-exception-stacktrace", b"java.lang.IllegalStateException: no stock\n\tat a.B.c(D.java:1)\n"),
    ("kafka_deliveryAttempt", struct.pack(">i", 4)),
]
CONNECT: hd.RawHeaders = [
    ("__connect.errors.topic", b"source"),
    ("__connect.errors.partition", b"0"),
    ("__connect.errors.offset", b"3"),
    ("__connect.errors.connector.name", b"warehouse"),
    ("__connect.errors.task.id", b"0"),
    ("__connect.errors.stage", b"VALUE_CONVERTER"),
    ("__connect.errors.class.name", b"org.apache.kafka.connect.json.JsonConverter"),
    ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
    ("__connect.errors.exception.message", b"no schema"),
    ("__connect.errors.exception.stacktrace", b"org.apache.."),
]
KAFKA: hd.RawHeaders = [
    ("__dlq.errors.topic", b"jobs"),
    ("__dlq.errors.partition", b"2"),
    ("__dlq.errors.offset", b"41"),
    ("__dlq.errors.group", b"workers"),
    ("__dlq.errors.delivery.count", b"5"),
    ("__dlq.errors.message", b"rejected"),
]
