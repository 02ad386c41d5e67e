"""H6: with a collector that is there, one that refuses connections and one that never answers, a member does
the same, shows the same numbers, and ends within the bounds of its last exports. A counter says what differs.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from streamloop.telemetry import table
from streamloop.telemetry.otlp_metrics import FLUSH_BOUND
from tests.mock_cluster import MockCluster
from tests.realkafka import Members
from tests.realkafka.node import HOST, free_ports
from tests.realkafka.waiting import wait_until
from tests.running_loop import ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRACE_FLUSH: Final = 0.5
SLACK: Final = 6.0
"""Seconds of a shutdown that this machine may make of nothing; the SDK alone would wait for 10 at least."""
GOOD, BAD = 300, 3

TELLS: Final = {
    table.EXPORT_FAILURES.name,
    table.DROPPED_SPANS.name,
}
"""What may differ because of the collector."""
CLOCKS: Final = {
    table.ITERATIONS.name,
    f"{table.ITERATION.name}_count",
    f"{table.OPERATION_DURATION.name}_count",
    table.HEARTBEAT.name,
    table.HELD.name,
    table.HELD_SECONDS.name,
    table.HELD_TOTAL.name,
    table.LAST_COMMIT.name,
    table.COMMITS.name,
    table.PROCESS_CPU.name,
}
"""What differs from run to run: times, and in how many parts something was done. Durations do, too."""


@contextmanager
def answering() -> Iterator[tuple[str, list[int]]]:
    """A collector that takes everything: its address, and how many spans came with each request."""
    came: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                request = ExportTraceServiceRequest.FromString(body)
                came.append(sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None: ...

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}", came
        finally:
            server.shutdown()
            thread.join(10)


@contextmanager
def black_hole() -> Iterator[str]:
    """Takes connections, and never answers."""
    with socket.create_server((HOST, 0), backlog=64) as listening:
        taken: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    taken.append(listening.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"http://{HOST}:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for each in taken:
            each.close()


Numbers = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Exporting:
    """A member that handles the same messages as the others, and exports to this collector all the while."""

    def __init__(self, members: Members, cluster: MockCluster, endpoint: str) -> None:
        for topic in ("orders", "orders.billing.retry.1s", "orders.billing.dlq"):
            cluster.create_topic(topic, 2)
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self._send(*[1] * GOOD, *[-1] * BAD)
        [port] = free_ports(1)
        self._url = f"http://{HOST}:{port}/metrics"
        self.member = members.start_module(
            "streamloop.cli.main",
            *("run", "tests.jaeger.member:loop", "--brokers", cluster.bootstrap),
            *("--member", "billing-1", "--ops-address", f"{HOST}:{port}"),
            env={
                "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
                "OTEL_BSP_SCHEDULE_DELAY": "100",
                "OTEL_METRIC_EXPORT_INTERVAL": "200",
                "STREAMLOOP_TRACE_FLUSH_TIMEOUT": f"{TRACE_FLUSH}s",
                "STREAMLOOP_COMMIT_INTERVAL": "0.1",
            },
        )

    def _send(self, *amounts: int) -> None:
        for number, amount in enumerate(amounts):
            self._producer.produce("orders", b'{"amount": %d}' % amount, partition=number % 2)
        assert self._producer.flush(10) == 0

    def numbers(self) -> Numbers:
        """Its /metrics."""
        text = ask(self._url).body.decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def until(self, *wanted: tuple[str, dict[str, str], float]) -> None:
        """Wait until sums over series have these values."""

        def there() -> bool:
            numbers = self.numbers()
            return all(total(numbers, name, **labels) == value for name, labels, value in wanted)

        wait_until(there, 60, lambda: f"{wanted}; it printed:\n" + "\n".join(self.member.lines))

    def until_failed(self, signal: str) -> None:
        """Wait until an export has failed, and was counted."""
        wait_until(
            lambda: total(self.numbers(), table.EXPORT_FAILURES.name, signal=signal) > 0,
            60,
            lambda: "\n".join(self.member.lines),
        )

    def handle_all(self) -> None:
        """Wait until everything is handled, committed and shown."""
        self.member.wait_for_line("member billing-1 of group", timeout=60)
        self.until(
            ("loop_processed_total", {"outcome": "acked"}, GOOD),
            ("loop_processed_total", {"outcome": "dead_lettered"}, BAD),
            ("loop_backlog", {}, 0),
            ("loop_lag_messages", {}, 0),
        )

    def end(self) -> float:
        """One more order, whose span is to be exported, and SIGTERM; seconds until the process has ended."""
        self._send(1)
        self.until(("loop_processed_total", {"outcome": "acked"}, GOOD + 1))
        began = time.monotonic()
        self.member.terminate()
        assert self.member.wait(60) == 0
        return time.monotonic() - began


def total(numbers: Numbers, name: str, **labels: str) -> float:
    """The sum over the series that have these labels."""
    return sum(
        value
        for (each, pairs), value in numbers.items()
        if each == name and labels.items() <= dict(pairs).items()
    )


def steady(numbers: Numbers) -> Numbers:
    """What has to be the same whatever the collector does."""
    return {
        key: value
        for key, value in numbers.items()
        if key[0] not in TELLS | CLOCKS and not key[0].endswith(("_bucket", "_sum"))
    }


@pytest.mark.timeout(180)
def test_H6_nothing_but_a_counter_tells_whether_the_collector_answers(tmp_path: Path) -> None:
    members = Members(tmp_path)
    [nobody] = free_ports(1)
    with ExitStack() as ends:
        ends.callback(members.end)
        there, came = ends.enter_context(answering())
        endpoints = {
            "there": there,
            "refuses": f"http://{HOST}:{nobody}",
            "silent": ends.enter_context(black_hole()),
        }
        running = {
            name: Exporting(members, ends.enter_context(MockCluster()), endpoint)
            for name, endpoint in endpoints.items()
        }
        for each in running.values():
            each.handle_all()
        failing = (running["refuses"], running["silent"])
        for each in failing:
            # The SDK tries an export for 10 s before it gives it up.
            each.until_failed("traces")
            each.until_failed("metrics")
        seen = {name: each.numbers() for name, each in running.items()}

        # The same numbers, to the last one; but for the counter.
        assert len(steady(seen["there"])) > 80
        assert steady(seen["refuses"]) == steady(seen["there"])
        assert steady(seen["silent"]) == steady(seen["there"])
        assert total(seen["there"], table.EXPORT_FAILURES.name) == 0
        for numbers in seen.values():
            assert total(numbers, table.DROPPED_SPANS.name) == 0
            assert total(numbers, "loop_failed_total") == 3 * BAD
            assert total(numbers, "loop_errors_total", type="event_loop_blocked") == 0

        # Where it answers, every span comes: an attempt each, three for what fails, and two publishes.
        quick = running["there"].end()
        assert sum(came) == GOOD + 1 + BAD * 5
        for each in failing:
            took = each.end()
            assert took < quick + TRACE_FLUSH + FLUSH_BOUND + SLACK
            assert "handling goes on" in "\n".join(each.member.lines)
        said = "\n".join(running["silent"].member.lines)
        assert f"the last spans were not exported within {TRACE_FLUSH:g} s" in said
        assert f"the last metrics were not exported within {FLUSH_BOUND:g} s" in said
