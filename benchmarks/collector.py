"""Messages a second with a collector that answers, one that refuses connections and one that never answers.

Each measurement is a member in a process of its own on a real Kafka, as an application runs it: all spans (or
1 % of them) and the metrics are exported over OTLP. The ways take turns, round by round, and so share what
else the machine does; each figure is the median of its rounds, each ratio that of the rounds' ratios. The
collector that answers is a process of its own, too: its CPU is not the member's.

    python -m benchmarks.collector --rounds 5 --messages 500000
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import threading
import time
import uuid
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

import click

from benchmarks.rivals import RivalFailedError, Rivals
from benchmarks.run import PARTITIONS, VALUE_BYTES, running_in_scratch
from streamloop import StreamLoop
from tests.realkafka import KafkaCluster, KafkaUnavailableError
from tests.realkafka.node import BENCH_JVM, HOST, free_ports
from tests.test_collector_away import black_hole

if TYPE_CHECKING:
    from tests.realkafka import Member, Members

WAYS: Final = ("off", "answers", "refuses", "silent")
KEYS: Final = 1_000
RUN_SECONDS: Final = 300.0
FLUSH_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One member's run. ``rate``: messages a second, and ``cpu``: us a message, from the first to the last.

    ``end``: seconds of its shutdown.
    """

    rate: float
    cpu: float
    end: float
    export_failures: int
    dropped_spans: int


def member(brokers: str, topic: str, messages: int, ops_address: str) -> Figure:
    """Handle so many messages in this process; the environment says where telemetry goes.

    ``ops_address``: where /metrics is served; '' for nowhere.
    """
    loop: StreamLoop[None] = StreamLoop(
        f"bench-{uuid.uuid4().hex[:8]}",
        brokers=brokers,
        log_level="ERROR",
        trace_flush_timeout=FLUSH_SECONDS,
        ops_address=ops_address or None,
    )
    handled = 0
    first = last = (0.0, 0.0)

    @loop.consumer(topic, ordering="key", retry_topics=())
    async def count(_value: bytes) -> None:
        nonlocal handled, first, last
        handled += 1
        if handled == 1:
            first = time.perf_counter(), time.process_time()
        elif handled == messages:
            last = time.perf_counter(), time.process_time()

    seen: dict[str, int] = {}

    @loop.on_shutdown
    async def look() -> None:
        await asyncio.sleep(0)
        for name in ("loop_export_failures_total", "loop_dropped_spans_total"):
            seen[name] = int(sum(loop.metrics().get(name, {}).values()))

    ended = loop.run(max_messages=messages)
    gone = time.perf_counter()
    if ended.exit_code != 0 or handled < messages:
        raise SystemExit(f"{handled} of {messages} messages handled, then: {ended.reason}")
    return Figure(
        messages / (last[0] - first[0]),
        (last[1] - first[1]) / messages * 1e6,
        gone - last[0],
        seen["loop_export_failures_total"],
        seen["loop_dropped_spans_total"],
    )


def collect() -> None:
    """Answer every export, and print where; runs until it is killed."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None: ...

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        print(f"listening {server.server_port}", flush=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        threading.Event().wait()


@dataclass(frozen=True, slots=True)
class Bench:
    """Where members run: the topic, and the collector's address by way ('': none)."""

    processes: Members
    brokers: str
    topic: str
    endpoints: dict[str, str]


def measure(bench: Bench, messages: int, share: float, way: str) -> Figure:
    """One member's run in a process of its own."""
    env = {"OTEL_METRIC_EXPORT_INTERVAL": "1000", "STREAMLOOP_TRACE_SAMPLE_RATIO": f"{share:g}"}
    if bench.endpoints[way]:
        env["OTEL_EXPORTER_OTLP_ENDPOINT"] = bench.endpoints[way]
    process = bench.processes.start_module(
        "benchmarks.collector",
        "member",
        bench.brokers,
        bench.topic,
        str(messages),
        f"{HOST}:0",
        name="member",
        env=env,
    )
    return figure_of(process)


def figure_of(process: Member) -> Figure:
    """What a member that was started measured of itself. Raises RivalFailedError when it failed."""
    code = process.wait(RUN_SECONDS)
    figures = [line for line in process.lines if line.startswith("{")]
    if code != 0 or not figures:
        raise RivalFailedError(f"the member failed (exit {code}):\n" + "\n".join(process.lines))
    return Figure(**json.loads(figures[-1]))


def compare(bench: Bench, messages: int, share: float, rounds: int) -> None:
    """All ways in each round; print medians, and ratios to the collector that answers."""
    seen: dict[str, list[Figure]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in (*WAYS[number % len(WAYS) :], *WAYS[: number % len(WAYS)]):  # no one is always first
            seen[way].append(measure(bench, messages, share, way))
    print(f"\n{share:.0%} of {messages:,} messages sampled, metrics every second, {rounds} rounds")
    print(
        f"{'collector':<10}{'messages/s':>12}{'to answers':>12}{'CPU us':>9}{'to answers':>12}"
        f"{'end s':>8}{'failures':>10}{'dropped':>9}"
    )
    for way, figures in seen.items():
        rates = [one.rate / other.rate for one, other in zip(figures, seen["answers"], strict=True)]
        cpus = [one.cpu / other.cpu for one, other in zip(figures, seen["answers"], strict=True)]
        rate, cpu, end, failures, dropped = (
            statistics.median(each)
            for each in zip(
                *((f.rate, f.cpu, f.end, f.export_failures, f.dropped_spans) for f in figures), strict=True
            )
        )
        print(
            f"{way:<10}{rate:>12,.0f}{statistics.median(rates):>11.2f}x{cpu:>9.1f}"
            f"{statistics.median(cpus):>11.2f}x{end:>8.1f}{failures:>10.0f}{dropped:>9.0f}",
            flush=True,
        )


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--messages", default=500_000, show_default=True, help="With 1 % sampled; of all, a tenth.")
def main(rounds: int, messages: int) -> None:
    """Measure with 1 % and with all of the messages sampled."""
    try:
        with ExitStack() as started:
            cluster = started.enter_context(KafkaCluster(jvm=BENCH_JVM))
            processes = started.enter_context(running_in_scratch())
            topic = cluster.create_topic(PARTITIONS, prefix="bench")
            Rivals(cluster.bootstrap, processes).fill(topic, messages, KEYS, VALUE_BYTES)
            there = processes.start_module("benchmarks.collector", "collect", name="collector")
            port = there.wait_for_line(r"listening (\d+)")[1]
            [nobody] = free_ports(1)
            ends = {
                "off": "",
                "answers": f"http://{HOST}:{port}",
                "refuses": f"http://{HOST}:{nobody}",
                "silent": started.enter_context(black_hole()),
            }
            for share, count in ((0.01, messages), (1.0, messages // 10)):
                compare(Bench(processes, cluster.bootstrap, topic, ends), count, share, rounds)
    except (KafkaUnavailableError, RivalFailedError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["member", brokers, topic, messages, ops_address]:
            os.environ.setdefault("OTEL_BSP_SCHEDULE_DELAY", "200")
            print(json.dumps(asdict(member(brokers, topic, int(messages), ops_address))), flush=True)
            os._exit(0)  # an exporter that is stuck is not waited for, as in `streamloop run`
        case ["collect"]:
            collect()
        case _:
            main()
