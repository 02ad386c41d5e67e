"""Runs each rival in a process of its own and reads the figure that it prints. Called by the driver.

A rival that fails, or prints no figure, raises RivalFailedError with what it wrote: a benchmark never leaves
one out silently.
"""

import json
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.realkafka import Member, Members, fetch_jars
from tests.realkafka.jars import java

ROOT = Path(__file__).resolve().parents[1]
JAVA_SOURCES = ROOT / "benchmarks" / "java"
RUN_SECONDS = 600.0
SAMPLE_SECONDS = 0.25


class RivalFailedError(Exception):
    """A rival ended without a figure."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a process that holds back, in MiB."""

    peak_mib: int
    after_mib: int


class Rivals:
    """The rivals on one broker. Each call reads the topic from its start in a group of its own."""

    def __init__(self, brokers: str, processes: Members) -> None:
        self._brokers = brokers
        self._processes = processes

    def fill(self, topic: str, messages: int, keys: int, size: int) -> None:
        """Produce messages of `size` bytes; no figure, only done or RivalFailedError."""
        arguments = [self._brokers, topic, str(messages), str(keys), str(size)]
        process = self._processes.start_module("benchmarks.produce", *arguments, name="produce")
        if process.wait(RUN_SECONDS) != 0:
            raise RivalFailedError("\n".join(process.lines))

    def streamloop(self, topic: str, messages: int, concurrency: int = 100, sleep_ms: int = 0) -> int:
        """streamloop's messages a second."""
        where = "benchmarks.streamloop_bench"
        return self._python(
            "streamloop", where, "rate", self._brokers, topic, messages, concurrency, sleep_ms
        )

    def consume(self, topic: str, messages: int) -> int:
        """A bare consume(500) loop's messages a second."""
        return self._python("consume", "benchmarks.bare", "consume", self._brokers, topic, messages)

    def poll(self, topic: str, messages: int) -> int:
        """A bare poll() loop's messages a second."""
        return self._python("poll", "benchmarks.bare", "poll", self._brokers, topic, messages)

    def sleepers(self, messages: int, concurrency: int) -> int:
        """What asyncio alone does with so many sleepers of 5 ms, a second."""
        return self._python("asyncio", "benchmarks.bare", "sleepers", concurrency, messages)

    def parallel_consumer(self, topic: str, messages: int, concurrency: int = 100, sleep_ms: int = 0) -> int:
        """Java's Parallel Consumer's messages a second."""
        jars = fetch_jars(JAVA_SOURCES / "pom.xml", "parallel-consumer")
        argv = [java(), "-Xmx2g", "-cp", f"{jars}/*", str(JAVA_SOURCES / "ParallelConsumerBench.java")]
        argv += [self._brokers, f"java-{uuid.uuid4().hex[:8]}", topic]
        argv += [str(messages), str(concurrency), str(sleep_ms)]
        return _figure(self._processes.start(argv, name="parallel_consumer"))

    def memory_while_holding(self, topic: str, seconds: float) -> Memory:
        """streamloop's resident memory while its handler holds a topic for so many seconds."""
        arguments = ["hold", self._brokers, topic]
        process = self._processes.start_module("benchmarks.streamloop_bench", *arguments, name="streamloop")
        try:
            process.wait_for_line("^held$")
            peak = last = 0
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                last = _resident_kib(process)
                peak = max(peak, last)
                time.sleep(SAMPLE_SECONDS)
            return Memory(peak // 1024, last // 1024)
        finally:
            process.kill()

    def _python(self, name: str, module: str, *arguments: object) -> int:
        process = self._processes.start_module(module, *map(str, arguments), name=name)
        return _figure(process)


def _figure(process: Member) -> int:
    code = process.wait(RUN_SECONDS)
    figures = [line for line in process.lines if line.startswith("{")]
    if code != 0 or not figures:
        output = "\n".join(process.lines)
        raise RivalFailedError(f"{process.name} failed (exit {code}):\n{output}")
    return int(json.loads(figures[-1])["messages_per_second"])


def _resident_kib(process: Member) -> int:
    """ps answers on every system, unlike /proc."""
    argv = ["ps", "-o", "rss=", "-p", str(process.pid)]
    answer = subprocess.run(argv, capture_output=True, text=True, check=False)
    if not process.running or not answer.stdout.strip():
        raise RivalFailedError(f"{process.name} ended while it was held:\n" + "\n".join(process.lines))
    return int(answer.stdout)
