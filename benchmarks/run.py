"""The driver (`make bench`): streamloop beside its rivals on one real Kafka, in one run.

Three parts. (1) A handler that does nothing: streamloop, a bare consume(500) loop, a bare poll() loop, Java's
Parallel Consumer. (2) A handler that sleeps 5 ms, at concurrency 100 and 1,000: streamloop, asyncio alone,
Java. (3) A handler that never returns: peak memory against the memory a minute later. Rivals take turns,
round by round; each figure is the median of its rounds. The last line is JSON. It exits non-zero when a rival
fails; it judges no figure.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.rivals import RivalFailedError, Rivals
from tests.realkafka import KafkaCluster, KafkaUnavailableError, Members
from tests.realkafka.node import BENCH_JVM

PARTITIONS = 4
VALUE_BYTES = 100
SLEEP_MS = 5
SLEEP_KEYS = 100_000
SLEEP_MESSAGES = {100: 50_000, 1_000: 200_000}

console = Console(stderr=False, highlight=False)


def fill(cluster: KafkaCluster, rivals: Rivals, messages: int, keys: int) -> str:
    """A topic with so many messages of 100 bytes."""
    topic = cluster.create_topic(PARTITIONS, prefix="bench")
    rivals.fill(topic, messages, keys, VALUE_BYTES)
    held = sum(cluster.end_offsets(topic).values())
    if held != messages:
        raise RivalFailedError(f"{topic} has {held} messages instead of {messages}")
    return topic


@contextmanager
def running_in_scratch() -> Iterator[Members]:
    """Processes in a folder that goes with them; all are ended, whatever happens."""
    with tempfile.TemporaryDirectory() as folder:
        processes = Members(Path(folder))
        try:
            yield processes
        finally:
            processes.end()


def take_turns(rounds: int, rivals: Mapping[str, Callable[[], int]]) -> dict[str, int]:
    """Each rival once a round; the median of each."""
    seen: dict[str, list[int]] = {name: [] for name in rivals}
    for number in range(rounds):
        for name, run in rivals.items():
            figure = run()
            seen[name].append(figure)
            console.print(f"  round {number + 1}: {name} {figure:,}/s")
    return {name: round(statistics.median(figures)) for name, figures in seen.items()}


def show(title: str, figures: Mapping[str, int]) -> None:
    """A table of the medians, with streamloop's ratio to each."""
    table = Table(title=title, title_justify="left")
    table.add_column("rival")
    table.add_column("messages/s", justify="right")
    table.add_column("streamloop is", justify="right")
    for name, figure in figures.items():
        ratio = "" if name == "streamloop" else f"{figures['streamloop'] / figure:.2f} x"
        table.add_row(name, f"{figure:,}", ratio)
    console.print(table)


def ratios(figures: Mapping[str, int]) -> dict[str, float]:
    """streamloop's figure divided by each rival's."""
    return {
        f"streamloop/{name}": round(figures["streamloop"] / figure, 3)
        for name, figure in figures.items()
        if name != "streamloop"
    }


def no_op(rivals: Rivals, topic: str, messages: int, rounds: int) -> dict[str, Any]:
    """Part 1: what handling a message costs when the handler does nothing."""
    console.print(f"[bold]No-op handler[/bold]: {messages:,} messages, key order, concurrency 100")
    figures = take_turns(
        rounds,
        {
            "streamloop": lambda: rivals.streamloop(topic, messages),
            "consume": lambda: rivals.consume(topic, messages),
            "poll": lambda: rivals.poll(topic, messages),
            "parallel_consumer": lambda: rivals.parallel_consumer(topic, messages),
        },
    )
    show("No-op handler", figures)
    return {**figures, "ratios": ratios(figures)}


def sleeping(rivals: Rivals, topic: str, concurrency: int, rounds: int) -> dict[str, Any]:
    """Part 2: how full the workers are kept when a handler waits."""
    messages = SLEEP_MESSAGES[concurrency]
    console.print(f"[bold]{SLEEP_MS} ms handler[/bold]: {messages:,} messages, concurrency {concurrency:,}")
    figures = take_turns(
        rounds,
        {
            "streamloop": lambda: rivals.streamloop(topic, messages, concurrency, SLEEP_MS),
            "asyncio": lambda: rivals.sleepers(messages, concurrency),
            "parallel_consumer": lambda: rivals.parallel_consumer(topic, messages, concurrency, SLEEP_MS),
        },
    )
    show(f"{SLEEP_MS} ms handler, concurrency {concurrency:,}", figures)
    return {**figures, "ratios": ratios(figures)}


def holding(rivals: Rivals, topic: str, messages: int, seconds: float) -> dict[str, Any]:
    """Part 3: memory while everything waits behind a handler."""
    console.print(f"[bold]Held handler[/bold]: {messages:,} messages waiting for {seconds:g} s")
    memory = rivals.memory_while_holding(topic, seconds)
    console.print(f"  peak {memory.peak_mib} MiB, after {seconds:g} s {memory.after_mib} MiB")
    return {"peak_mib": memory.peak_mib, "after_mib": memory.after_mib, "seconds": seconds}


@click.command()
@click.option("--messages", default=2_000_000, show_default=True, help="Messages in the topic of parts 1, 3.")
@click.option("--keys", default=1_000, show_default=True, help="Keys in that topic.")
@click.option("--rounds", default=3, show_default=True, help="Rounds of part 1; part 2 has two at most.")
@click.option("--hold-seconds", default=60.0, show_default=True, help="How long part 3 holds the handler.")
@click.option("--part", "parts", type=click.Choice(["1", "2", "3"]), multiple=True, help="Only these parts.")
def main(messages: int, keys: int, rounds: int, hold_seconds: float, parts: tuple[str, ...]) -> None:
    """streamloop beside bare loops and Java's Parallel Consumer, on a real Kafka."""
    chosen = set(parts or "123")
    answer: dict[str, Any] = {}
    try:
        with KafkaCluster(jvm=BENCH_JVM) as cluster, running_in_scratch() as processes:
            rivals = Rivals(cluster.bootstrap, processes)
            if chosen & {"1", "3"}:
                topic = fill(cluster, rivals, messages, keys)
            if "1" in chosen:
                answer |= no_op(rivals, topic, messages, rounds)
            if "2" in chosen:
                answer["sleep_5ms"] = {}
                for concurrency, count in SLEEP_MESSAGES.items():
                    waiting = fill(cluster, rivals, count, SLEEP_KEYS)
                    figures = sleeping(rivals, waiting, concurrency, min(rounds, 2))
                    answer["sleep_5ms"][str(concurrency)] = figures
            if "3" in chosen:
                answer["memory"] = holding(rivals, topic, messages, hold_seconds)
    except (KafkaUnavailableError, RivalFailedError) as error:
        sys.exit(str(error))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
