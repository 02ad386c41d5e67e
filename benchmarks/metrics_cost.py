"""What metrics cost: CPU for each message of a handler that does nothing, with metrics off and on.

Each measurement is a member in a process of its own on a real Kafka, without tracing. Off: no listener, no
exporter (the counters themselves are plain integers and are always there). On: /metrics of its `ops_address`
is scraped once a second, in the format that Prometheus asks for, and the same is pushed over OTLP once a
second to a collector that answers; scraper and collector are other processes, so that their CPU is not the
member's. In rounds of pairs, on right beside off and in turn first; two runs without metrics in each round
say what chance makes of it. What is shown is the median of the differences.

    python -m benchmarks.metrics_cost --rounds 9 --messages 1000000
"""

from __future__ import annotations

import statistics
import sys
import threading
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from benchmarks.collector import KEYS, Figure, figure_of
from benchmarks.rivals import RivalFailedError, Rivals
from benchmarks.run import PARTITIONS, VALUE_BYTES, running_in_scratch
from tests.realkafka import KafkaCluster, KafkaUnavailableError
from tests.realkafka.node import BENCH_JVM, HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.realkafka import Members

EVERY: Final = 1.0
"""Seconds between two scrapes, and between two pushes."""
ACCEPT: Final = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@dataclass(slots=True)
class Scraper:
    """Counts its scrapes that were answered with metrics."""

    url: str
    answered: int = 0

    def run(self, stop: threading.Event) -> None:
        """Scrape until told to stop; a member that does not listen yet, or no more, is asked again."""
        while not stop.wait(EVERY):
            try:
                request = urllib.request.Request(self.url, headers={"Accept": ACCEPT})
                with urllib.request.urlopen(request, timeout=EVERY) as answer:
                    self.answered += b"loop_" in answer.read()
            except OSError:
                continue


@contextmanager
def scraping(url: str) -> Iterator[Scraper]:
    """Scrapes while the block runs."""
    scraper, stop = Scraper(url), threading.Event()
    thread = threading.Thread(target=scraper.run, args=(stop,))
    thread.start()
    try:
        yield scraper
    finally:
        stop.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Bench:
    """Where members run, and the collector that answers."""

    processes: Members
    brokers: str
    topic: str
    messages: int
    collector: str

    def off(self) -> Figure:
        """A member whose metrics nobody sees."""
        return self._run("", {})

    def on(self) -> Figure:
        """A member whose metrics are scraped and pushed. Raises RivalFailedError when they were not."""
        [port] = free_ports(1)
        env = {
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{self.collector}/v1/metrics",
            "OTEL_METRIC_EXPORT_INTERVAL": f"{EVERY * 1000:.0f}",
        }
        with scraping(f"http://{HOST}:{port}/metrics") as scraper:
            figure = self._run(f"{HOST}:{port}", env)
        if not scraper.answered or figure.export_failures:
            raise RivalFailedError(
                f"{scraper.answered} scrapes were answered and {figure.export_failures} pushes failed: "
                "give it more --messages, so that a run takes some seconds"
            )
        return figure

    def _run(self, ops_address: str, env: dict[str, str]) -> Figure:
        return figure_of(
            self.processes.start_module(
                "benchmarks.collector",
                *("member", self.brokers, self.topic, str(self.messages), ops_address),
                name="member",
                env=env,
            )
        )


def compare(bench: Bench, rounds: int) -> None:
    """Pairs, round by round; print the differences."""
    plain: list[float] = []
    added: list[float] = []
    slower: list[float] = []
    chance: list[float] = []
    for number in range(rounds):
        if number % 2:
            on, off = bench.on(), bench.off()
        else:
            off, on = bench.off(), bench.on()
        again = bench.off()
        plain += [off.cpu, again.cpu]
        added.append(on.cpu - off.cpu)
        slower.append((off.rate / on.rate - 1) * 100)
        chance.append(again.cpu - off.cpu)
    print(f"\n{bench.messages:,} messages, {rounds} rounds, scraped and pushed every {EVERY:g} s")
    print(f"metrics off: {statistics.median(plain):.2f} us of CPU a message")
    for name, differences in (("off against off", chance), ("on against off", added)):
        low, middle, high = statistics.quantiles(differences, n=4)
        print(f"{name:<16} {middle:+.2f} us a message (quartiles {low:+.2f} {high:+.2f})")
    print(f"{'wall time':<16} {statistics.median(slower):+.1f} %", flush=True)


@click.command()
@click.option("--rounds", default=9, show_default=True)
@click.option("--messages", default=1_000_000, show_default=True)
def main(rounds: int, messages: int) -> None:
    """Measure with metrics off and on."""
    try:
        with ExitStack() as started:
            cluster = started.enter_context(KafkaCluster(jvm=BENCH_JVM))
            processes = started.enter_context(running_in_scratch())
            topic = cluster.create_topic(PARTITIONS, prefix="bench")
            Rivals(cluster.bootstrap, processes).fill(topic, messages, KEYS, VALUE_BYTES)
            there = processes.start_module("benchmarks.collector", "collect", name="collector")
            port = there.wait_for_line(r"listening (\d+)")[1]
            collector = f"http://{HOST}:{port}"
            compare(Bench(processes, cluster.bootstrap, topic, messages, collector), rounds)
    except (KafkaUnavailableError, RivalFailedError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
