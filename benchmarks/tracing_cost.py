"""What tracing costs: CPU for each message, off and at 0 %, 1 % and 100 %, with and without traceparent.

No broker: the engine, the core and the async runner of production get real Kafka messages from memory, and
spans go through the SDK's batch processor and its OTLP encoding to an exporter that sends nothing. All in one
process, in rounds in which each variant runs right after the run without tracing that it is compared with;
what is shown is the median of the differences. CPU of the whole process, the exporter's thread included.

    python -m benchmarks.tracing_cost --rounds 15 --messages 20000
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import confluent_kafka
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from streamloop import StreamLoop
from streamloop.assembly import Bounds
from streamloop.build import build_engine
from streamloop.core import Core
from streamloop.engine import events as ev
from streamloop.engine.events import TopicPartition
from streamloop.engine.record import Record
from streamloop.preflight import topics_of
from streamloop.telemetry.exporting import QUEUE, SpanQueue
from streamloop.telemetry.sampler import DrawnIds, KeepFailedSampler, policy_of
from streamloop.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

PARTITIONS = 4
FETCH = 500
"""Messages of one delivery, as the poller gives them."""


class Encoding(SpanExporter):
    """Encodes, as the OTLP exporter does, and sends nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


@dataclass
class Intake:
    """Stands for a poller that always has messages: gives the next ones when it is woken."""

    core: Core
    capacity: Any
    messages: deque[list[Any]]
    done: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: bool = True

    def command(self, commands: Sequence[Any]) -> None:
        """Nothing is committed."""

    def wake(self) -> None:
        """There is room again."""
        capacity = self.capacity
        if not self.messages:
            if capacity.messages == 0:
                self.done.set()
            return
        events: list[ev.Event] = []
        while self.messages and capacity.room() > 0:
            raw = self.messages.popleft()
            records = [Record(each.offset(), each.key(), 100, -1, each) for each in raw]
            capacity.took(len(records), 100 * len(records), 100)
            events.append(ev.Fetched(TopicPartition("orders", raw[0].partition()), 1, records))
        if events:
            self.core.deliver(events)


class NoPublisher:
    """Nothing is published here."""

    def submit(self, requests: Sequence[Any]) -> None:
        raise AssertionError(requests)

    def cancel(self, ids: object) -> None:
        raise AssertionError(ids)


def make_messages(count: int, *, traceparent: bool, share: float) -> deque[list[Any]]:
    """Real messages; ``share`` of their contexts is sampled, where they have any."""
    draw = random.Random(1)
    runs: deque[list[Any]] = deque()
    offsets = [0] * PARTITIONS
    for at in range(0, count, FETCH):
        partition = (at // FETCH) % PARTITIONS
        run = []
        for _ in range(min(FETCH, count - at)):
            sampled = int(draw.random() < share)
            context = b"00-%032x-%016x-%02x" % (draw.getrandbits(128) | 1, draw.getrandbits(64) | 1, sampled)
            run.append(
                confluent_kafka.Message(
                    topic="orders",
                    partition=partition,
                    offset=offsets[partition],
                    key=b"key-%d" % draw.randrange(1000),
                    value=b"x" * 100,
                    headers=[("traceparent", context)] if traceparent else None,
                )
            )
            offsets[partition] += 1
        runs.append(run)
    return runs


def loop_of(handler_us: float) -> StreamLoop[None]:
    """A loop whose handler takes so many microseconds of CPU."""
    loop: StreamLoop[None] = StreamLoop("cost", retry_topics=())

    async def nothing(_value: bytes) -> None:
        return

    async def work(_value: bytes) -> None:
        end = time.thread_time_ns() + int(handler_us * 1000)
        while time.thread_time_ns() < end:
            pass

    loop.consumer("orders", name="work")(work if handler_us else nothing)
    return loop


@dataclass(slots=True)
class Took:
    """One run. ``cpu`` and ``wall`` in seconds; ``spans`` that were exported or dropped."""

    cpu: float
    wall: float
    spans: int


async def run_once(
    loop: StreamLoop[None], messages: deque[list[Any]], tracing: Tracing | None, queue: SpanQueue
) -> Took:
    """Handle all messages, and export all spans."""
    assembly = loop.assemble(needs_broker=False)
    topics = topics_of(assembly)
    engine, [capacity] = build_engine(assembly, topics, Bounds())
    core = Core(
        engine,
        assembly.consumers,
        topics,
        group="cost",
        clock=time.monotonic,
        wall=time.time,
        tracing=tracing,
    )
    intake = Intake(core, capacity, messages)
    core.connect([intake], NoPublisher())
    names = [TopicPartition("orders", partition) for partition in range(PARTITIONS)]
    core.step([ev.Assigned(0, name, 1, 0, True, "", "unknown", "unknown") for name in names])
    exported = queue.exported + queue.dropped
    gc.collect()
    gc.disable()
    cpu, wall = time.process_time(), time.perf_counter()
    intake.wake()
    await intake.done.wait()
    handled = time.perf_counter() - wall
    queue.force_flush()
    took = Took(time.process_time() - cpu, handled, queue.exported + queue.dropped - exported)
    gc.enable()
    await core.close()
    return took


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of tracing."""

    name: str
    share: float
    traceparent: bool


VARIANTS = [
    Variant(f"{share:.0%}, {'with' if has else 'without'} traceparent", share, has)
    for has in (True, False)
    for share in (0.0, 0.01, 1.0)
]


def tracing_of(provider: TracerProvider) -> Tracing:
    """As a run makes it."""
    ids = provider.id_generator
    assert isinstance(ids, DrawnIds)
    return Tracing(
        provider.get_tracer("streamloop"),
        policy_of(provider.sampler),
        group="cost",
        client="benchmark",
        clock=time.monotonic,
        wall=time.time,
        ids=ids,
    )


def measure(rounds: int, count: int, handler_us: float) -> None:
    """Run all variants in each round, each right after a run without tracing, and print the differences."""
    loop = loop_of(handler_us)
    queue = SpanQueue(QUEUE)
    queue.open(Encoding(), {"traces": 0})
    providers = {}
    for variant in VARIANTS:
        sampler = KeepFailedSampler(ParentBasedTraceIdRatio(variant.share))
        provider = TracerProvider(sampler=sampler, id_generator=DrawnIds(), shutdown_on_exit=False)
        provider.add_span_processor(queue)
        providers[variant] = provider
    added: dict[Variant, list[float]] = {variant: [] for variant in VARIANTS}
    slower: dict[Variant, list[float]] = {variant: [] for variant in VARIANTS}
    spans: dict[Variant, int] = dict.fromkeys(VARIANTS, 0)
    plain: list[float] = []
    twice: list[float] = []
    for turn in range(rounds + 1):
        for variant in VARIANTS:
            messages = make_messages(count, traceparent=variant.traceparent, share=variant.share)
            off = asyncio.run(run_once(loop, messages.copy(), None, queue))
            on = asyncio.run(run_once(loop, messages.copy(), tracing_of(providers[variant]), queue))
            if turn == 0:
                continue  # the first round warms up
            added[variant].append((on.cpu - off.cpu) / count * 1e6)
            slower[variant].append((on.wall / off.wall - 1) * 100)
            spans[variant] += on.spans
            plain.append(off.cpu / count * 1e6)
        messages = make_messages(count, traceparent=True, share=0.01)
        first, second = (asyncio.run(run_once(loop, messages.copy(), None, queue)) for _ in range(2))
        twice.append((second.cpu - first.cpu) / count * 1e6)
    queue.close()
    print(f"\nhandler {handler_us:g} us, {count} messages, {rounds} rounds of pairs")
    print(f"tracing off: {statistics.median(plain):.2f} us of CPU a message")
    print(f"{'off against off':<28} {statistics.median(twice):+8.2f} us (what chance makes of it)")
    for variant in VARIANTS:
        low, middle, high = statistics.quantiles(added[variant], n=4)
        print(
            f"{variant.name:<28} {middle:+8.2f} us a message (quartiles {low:+.2f} {high:+.2f}), "
            f"{statistics.median(slower[variant]):+6.1f} % wall time, "
            f"{spans[variant] / rounds / count:.4f} spans a message"
        )


def main() -> None:
    """Measure a handler that does nothing, and one with 100 us of CPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--busy-messages", type=int, default=3_000)
    arguments = parser.parse_args()
    measure(arguments.rounds, arguments.messages, 0.0)
    measure(arguments.rounds, arguments.busy_messages, 100.0)


if __name__ == "__main__":
    main()
