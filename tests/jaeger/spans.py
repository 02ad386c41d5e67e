"""What the tests send to Jaeger, and how they read what it answers."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind

CONSUMER, PRODUCER_KIND, INTERNAL = "SPAN_KIND_CONSUMER", "SPAN_KIND_PRODUCER", "SPAN_KIND_INTERNAL"
KINDS = {1: INTERNAL, 4: PRODUCER_KIND, 5: CONSUMER}
"""OTLP's JSON has the kind as a number or as a name."""
ERROR = (2, "STATUS_CODE_ERROR")


def order(bootstrap: str, endpoint: str, value: bytes, *, topic: str = "orders") -> trace.SpanContext:
    """A shop sends an order, and a span of its own; returns that span's context."""
    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
    with provider.get_tracer("shop").start_as_current_span("send orders", kind=SpanKind.PRODUCER) as span:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        headers: list[tuple[str, str | bytes | None]] = list(carrier.items())
        producer.produce(topic, value, key=b"c1", headers=headers)
        assert producer.flush(10) == 0
        context = span.get_span_context()
    provider.shutdown()
    return context


def attributes(entry: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a span or an event in OTLP's JSON."""
    return {each["key"]: next(iter(each["value"].values())) for each in entry.get("attributes", ())}


def kind(span: dict[str, Any]) -> str:
    """The kind of a span, by name."""
    given = span["kind"]
    return KINDS.get(given, str(given)) if isinstance(given, int) else given


def failed(span: dict[str, Any]) -> bool:
    """Whether its status is an error."""
    return span.get("status", {}).get("code") in ERROR
