"""The attributes of spans: the names of OpenTelemetry's messaging conventions (1.44), and our own.

Called only for spans that are recorded (or that a sampler of the user's wants to look at).
"""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING, Final

from streamloop.engine.states import State

if TYPE_CHECKING:
    from streamloop.engine.retry import Failure
    from streamloop.message import RawMessage

Value = str | int | bool
Attributes = dict[str, Value]

SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
OFFSET: Final = "messaging.kafka.offset"
KEY: Final = "messaging.kafka.message.key"
TOMBSTONE: Final = "messaging.kafka.message.tombstone"
GROUP: Final = "messaging.consumer.group.name"
CLIENT: Final = "messaging.client.id"
BATCH: Final = "messaging.batch.message_count"
ERROR: Final = "error.type"

CONSUMER: Final = "streamloop.consumer"
ATTEMPT: Final = "streamloop.attempt"
OUTCOME: Final = "streamloop.outcome"
STATE: Final = "streamloop.state"
KEPT: Final = "streamloop.kept"
"""True on a span that was made because its attempt failed, though its trace is not sampled."""
ORIGINAL: Final = "streamloop.original"
"""topic/partition/offset of the original, on deliveries from retry topics."""

LONGEST_KEY: Final = 256
"""Characters."""
LONGEST_STACK: Final = 16_384
"""Characters of a stack trace; its end is what matters."""

OUTCOMES: Final = {
    State.ACKED: "acked",
    State.BACKOFF: "failed",
    State.ROUTING_RETRY: "retried",
    State.ROUTING_DEAD: "dead_lettered",
    State.HALTED: "halted",
    State.REVOKED: "revoked",
}
"""In the words of the metrics and logs."""


def operation(name: str, kind: str, topic: str, client: str) -> Attributes:
    """What all spans of ours say. ``topic`` '': several."""
    attributes: Attributes = {SYSTEM: "kafka", OPERATION: name, OPERATION_TYPE: kind, CLIENT: client}
    if topic:
        attributes[DESTINATION] = topic
    return attributes


def put_key(attributes: Attributes, key: bytes | None, value: bytes | None) -> None:
    """The message's key, as text and bounded, and whether it is a tombstone."""
    if key is not None:
        attributes[KEY] = key[:LONGEST_KEY].decode("utf-8", "backslashreplace")
    if value is None:
        attributes[TOMBSTONE] = True


def put_place(attributes: Attributes, raw: RawMessage) -> None:
    """Where the record was read, and its key."""
    attributes[PARTITION] = str(raw.partition())
    attributes[OFFSET] = raw.offset() or 0
    put_key(attributes, raw.key(), raw.value())


def exception_event(error: BaseException, failure: Failure) -> Attributes:
    """The attributes of an exception event. The failure's texts are bounded, and can always be printed."""
    attributes: Attributes = {
        "exception.type": failure.error_class,
        "exception.message": failure.message,
        ERROR: failure.error_class,
        "streamloop.fingerprint": failure.fingerprint,
    }
    if isinstance(error, asyncio.CancelledError):
        return attributes
    try:
        stack = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - an exception that can't be printed
        return attributes
    attributes["exception.stacktrace"] = stack[-LONGEST_STACK:].encode("utf-8", "replace").decode()
    return attributes
