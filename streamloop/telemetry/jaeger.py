"""Asks Jaeger for a trace (its API v3: OTLP's JSON) and reads the answer.

What is not as it should be is left out, never an exception: another version may have sent it. Called by
``streamloop trace`` and by the console.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from streamloop.errors import ConfigurationError, StreamLoopError, short_class
from streamloop.http_get import get_json, objects, rows
from streamloop.telemetry import attributes as names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TIMEOUT: Final = 10.0
"""Seconds."""
LONGEST_ERROR: Final = 200
_KINDS: Final = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}
_TRACE_ID: Final = re.compile("[0-9a-f]{32}")


class JaegerError(StreamLoopError):
    """Jaeger could not be asked, or answered with something else than a trace."""


@dataclass(slots=True)
class Span:
    """One span. Times in ns since the epoch. ``error``: what failed, '' when nothing did."""

    span_id: str
    parent_id: str
    trace_id: str
    service: str
    name: str
    kind: str
    start: int
    end: int
    failed: bool = False
    error: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    """The ids of other traces that it is linked to."""


def trace_id_of(given: str) -> str:
    """A trace id as it is written: 32 hexadecimal digits. Raises ConfigurationError."""
    found = given.strip().lower().replace("-", "").removeprefix("0x")
    if 16 <= len(found) < 32:
        found = found.rjust(32, "0")  # Jaeger shows them without leading zeros
    if _TRACE_ID.fullmatch(found) is None or set(found) == {"0"}:
        raise ConfigurationError(f"{given[:80]!r} is no trace id: give its 32 hexadecimal digits.")
    return found


def fetch_trace(url: str, trace_id: str) -> list[Span]:
    """The spans of a trace, by their start; empty when Jaeger has none. Raises JaegerError."""
    asked = f"{url}/api/v3/traces/{quote(trace_id)}"
    try:
        status, answer = get_json(asked, timeout=TIMEOUT)
    except ValueError as error:
        raise JaegerError(f"Jaeger at {url} could not be asked: {error}.") from None
    if status == 404:
        return []
    if status != 200 or not isinstance(answer, dict):
        said = objects(objects(answer).get("error")).get("message", "no reason given")
        raise JaegerError(f"Jaeger at {url} refused the trace (HTTP {status}): {str(said)[:LONGEST_ERROR]}")
    if "result" not in answer:
        raise JaegerError(
            f"The answer of {url} is not that of Jaeger's API v3: give the address of its query API."
        )
    return sorted(spans_of(answer), key=lambda span: (span.start, -span.end))


def spans_of(answer: dict[str, Any]) -> Iterator[Span]:
    """The spans in an answer of the API. What is not as it should be is left out."""
    for resource in rows(objects(answer.get("result")), "resourceSpans"):
        service = str(_attributes(objects(resource.get("resource"))).get("service.name", ""))
        for scope in rows(resource, "scopeSpans"):
            for raw in rows(scope, "spans"):
                span = _span(raw, service)
                if span is not None:
                    yield span


def _span(raw: dict[str, Any], service: str) -> Span | None:
    try:
        start, end = int(raw["startTimeUnixNano"]), int(raw["endTimeUnixNano"])
    except (KeyError, TypeError, ValueError):
        return None
    span_id, trace_id = _id(raw.get("spanId"), 8), _id(raw.get("traceId"), 16)
    status = objects(raw.get("status"))
    failed = status.get("code") in (2, "STATUS_CODE_ERROR")
    error = ""
    for event in rows(raw, "events"):
        said = _attributes(event)
        if event.get("name") == "exception" or "exception.type" in said:
            kind = short_class(str(said.get("exception.type", "error")))
            error = f"{kind}: {said.get('exception.message', '')}"
    if failed and not error:
        error = str(status.get("message", "")) or "failed"
    linked = (_id(each.get("traceId"), 16) for each in rows(raw, "links"))
    return Span(
        span_id=span_id,
        parent_id=_id(raw.get("parentSpanId"), 8),
        trace_id=trace_id,
        service=service,
        name=str(raw.get("name", "")),
        kind=_kind(raw.get("kind")),
        start=start,
        end=max(start, end),
        failed=failed,
        error=error if failed else "",
        attributes=_attributes(raw),
        links=tuple(dict.fromkeys(each for each in linked if each and each != trace_id)),
    )


def _attributes(value: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for each in rows(value, "attributes"):
        for kind, content in objects(each.get("value")).items():
            # OTLP's JSON writes 64-bit integers as texts.
            number = kind == "intValue" and str(content).lstrip("-").isdigit()
            found[str(each.get("key"))] = int(content) if number else content
    return found


def _id(value: Any, size: int) -> str:
    """An id in hexadecimal. OTLP's JSON has it so; plain protobuf JSON has base64."""
    given = value if isinstance(value, str) else ""
    if not given or len(given) == 2 * size:
        return "" if set(given) == {"0"} else given.lower()
    try:
        found = base64.b64decode(given, validate=True).hex()
    except (binascii.Error, ValueError):
        return given
    return "" if set(found) == {"0"} else found


def _kind(value: Any) -> str:
    if isinstance(value, int):
        return _KINDS.get(value, "")
    return str(value or "").removeprefix("SPAN_KIND_").lower()


def messages_of(spans: Sequence[Span]) -> list[tuple[str, int, int, str]]:
    """(topic, partition, offset, group) of each message that the trace shows being handled: originals."""
    found: dict[tuple[str, int, int, str], None] = {}
    for span in spans:
        known = span.attributes
        if not span.name.startswith("process ") or names.GROUP not in known:
            continue
        original = str(known.get(names.ORIGINAL, ""))
        place = f"{known.get(names.DESTINATION)}/{known.get(names.PARTITION)}/{known.get(names.OFFSET)}"
        topic, _, rest = (original or place).rpartition("/")[0].rpartition("/")
        offset = (original or place).rpartition("/")[2]
        if topic and rest.isdigit() and offset.isdigit():
            group = str(known[names.GROUP])
            # What retry topics deliver is read by a group of their own.
            found[topic, int(rest), int(offset), group.removesuffix(".retry") if original else group] = None
    return list(found)
