"""The shop: sends orders, each with a trace of its own, until SIGTERM or Ctrl-C.

`python -m examples.orders.producer --brokers host:9092 --rate 20` makes the topics when they are missing. Its
spans go where the OTEL_* variables say; without an endpoint there are none, and the trace begins in the
service. Orders that will fail for good are printed with their place and their trace id.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # it has no __all__
from opentelemetry import trace
from opentelemetry.propagate import inject
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

TOPIC: Final = "orders"
PARCELS: Final = "parcels"
PARTITIONS: Final = 6
CUSTOMERS: Final = 200
ALIVE: Final = Path("/tmp/producing")  # noqa: S108  # for the container's health check


def order(number: int) -> tuple[bytes, bool]:
    """The order of that number, and whether it ends as a dead letter."""
    if number % 1_000 == 700:
        return b'{"id": "no order at all', True
    declined, amount = 0, 100 + number % 900
    if number % 200 == 20:
        declined = -1
    elif number % 500 == 400:
        amount = 0
    elif number % 100 == 50:
        declined = 3  # through a retry topic
    elif number % 20 == 10:
        declined = 1  # again in place
    value = {"id": number, "customer": customer(number), "amount": amount, "declined": declined}
    return json.dumps(value).encode(), declined < 0 or amount == 0


def customer(number: int) -> str:
    """Who sends the order of that number."""
    return f"customer-{number % CUSTOMERS}"


def make_topics(brokers: str) -> None:
    """Make what is missing. KafkaException when the broker refuses, or can't be reached for 30 s."""
    admin = AdminClient({"bootstrap.servers": brokers})
    topics = [NewTopic(name, PARTITIONS, -1) for name in (TOPIC, PARCELS)]
    for made in admin.create_topics(topics, request_timeout=30.0).values():
        try:
            made.result(30.0)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def tracing() -> TracerProvider | None:
    """Send spans where OTEL_EXPORTER_OTLP_ENDPOINT says; None when it says nothing."""
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return None
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


def report(number: int, trace_id: str, doomed: bool) -> Callable[[KafkaError | None, Message], None]:
    """What to say when the broker has answered."""

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            click.echo(f"order {number} was not delivered: {error.str()}", err=True)
        elif doomed:
            place = f"{message.topic()} {message.partition()} {message.offset()}"
            click.echo(f"order {number} will be a dead letter: {place} trace {trace_id}")

    return delivered


@click.command()
@click.option("--brokers", envvar="KAFKA_BROKERS", default="localhost:9092", show_default=True)
@click.option(
    "--rate", type=click.FloatRange(min=0.1), default=20.0, show_default=True, help="Orders a second."
)
@click.option("--count", type=click.IntRange(min=1), help="End after this many; without it, go on.")
def main(brokers: str, rate: float, count: int | None) -> None:
    """Send orders."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    provider = tracing()
    tracer = trace.get_tracer("examples.orders")
    make_topics(brokers)
    producer = Producer(
        {"bootstrap.servers": brokers, "enable.idempotence": True, "partitioner": "murmur2_random"}
    )
    sent = 0
    while not stop.is_set() and (count is None or sent < count):
        sent += 1
        value, doomed = order(sent)
        attributes = {"messaging.system": "kafka", "messaging.destination.name": TOPIC}
        with tracer.start_as_current_span(
            f"send {TOPIC}", kind=trace.SpanKind.PRODUCER, attributes=attributes
        ) as span:
            headers: dict[str, str] = {}
            inject(headers)
            trace_id = format(span.get_span_context().trace_id, "032x")
            producer.produce(
                TOPIC,
                value,
                customer(sent).encode(),
                headers=list(headers.items()),
                on_delivery=report(sent, trace_id, doomed),
            )
        producer.poll(0)
        if sent % 100 == 1:
            ALIVE.touch()
        stop.wait(1 / rate)
    undelivered = producer.flush(30)
    if provider is not None:
        provider.shutdown()
    click.echo(f"sent {sent} orders, {undelivered} of them without an answer from the broker")
    raise SystemExit(1 if undelivered else 0)


if __name__ == "__main__":
    main()
