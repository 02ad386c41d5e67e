"""Produces orders, runs the service on them, kills it half-way, starts it again, replays, and adds up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from rich.console import Console
from rich.live import Live
from rich.table import Table

from streamloop import dlq
from streamloop.demo.orders import TOPIC, Expected, records
from streamloop.dlq import Filter, ReplayPlan
from streamloop.kafka.headers import headers_of
from streamloop.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamloop.dlq import ReplaySummary

ORDERS: Final = 20_000
TIME_LIMIT: Final = 75.0
"""Seconds after which the demo gives up."""
SESSION: Final = 6
"""Seconds after which the group goes on without a member that was killed."""
GROUP: Final = "billing"
DEAD_TOPIC: Final = f"{TOPIC}.{GROUP}.dlq"
MENDED: Final = "mended"
"""The file that mends what made some orders fail for ever."""

console = Console()
if not console.is_terminal:
    console = Console(width=110)


class EmbeddedBroker:
    """librdkafka's mock broker, inside this process, on 127.0.0.1 and a free port."""

    def __init__(self) -> None:
        self._client = Producer(
            {"test.mock.num.brokers": 1, "compression.type": "lz4", "linger.ms": 5, "log_level": 0}
        )
        brokers = self._client.list_topics(timeout=10).brokers
        broker = next(iter(brokers.values()))
        self.address = f"{broker.host}:{broker.port}"

    def produce(self, count: int) -> Expected:
        """Send the orders; returns what is expected of them."""
        expected = Expected()
        failed = 0

        def report(error: KafkaError | None, _message: object) -> None:
            nonlocal failed
            failed += error is not None

        for key, value in records(count, expected):
            self._client.produce(TOPIC, value, key, on_delivery=report)
            self._client.poll(0)
        left = self._client.flush(30)
        if left or failed:
            raise SystemExit(f"demo: {left + failed} orders could not be produced")
        return expected


@dataclass(slots=True)
class Service:
    """The service in a process of its own."""

    process: subprocess.Popen[bytes]
    status_file: Path
    status: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def start(cls, folder: Path, number: int, brokers: str) -> Service:
        """Start ``streamloop run`` on the sample service."""
        status_file = folder / f"status-{number}.json"
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("STREAMLOOP_")
        } | {
            "DEMO_JOURNAL": str(folder / "journal"),
            "DEMO_STATUS": str(status_file),
            "DEMO_MENDED": str(folder / MENDED),
        }
        with (folder / f"log-{number}.txt").open("wb") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "streamloop.cli.main",
                    "run",
                    "streamloop.demo.service:loop",
                    "--brokers",
                    brokers,
                    "--log-level",
                    "WARNING",
                    # The embedded broker hands a killed member's partitions on when its session is over: that
                    # takes 30 s with the consumer protocol, and can be set with the classic one.
                    "--group-protocol",
                    "classic",
                    "--set",
                    f"kafka.consumer.session.timeout.ms={SESSION * 1000}",
                    "--set",
                    "kafka.consumer.heartbeat.interval.ms=1000",
                ],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return cls(process, status_file)

    def look(self) -> None:
        """Read the status that it wrote last."""
        try:
            self.status = json.loads(self.status_file.read_text())
        except (OSError, ValueError):
            return

    def counts(self) -> Counter[str]:
        """Its counters, over all its consumers."""
        total: Counter[str] = Counter()
        for consumer in self.status.get("consumers", ()):
            total.update(consumer["counts"])
        return total


class Journal:
    """What was handled: one line for each success, read as it grows."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb")
        self.handled: Counter[int] = Counter()

    def look(self) -> None:
        """Read what is new."""
        for line in self._file:
            self.handled[int(line.split()[0])] += 1


class DeadLetters:
    """The dead-letter topic, read without a group."""

    def __init__(self, brokers: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": brokers,
                "group.id": "demo-reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._assigned = False
        self.origins: Counter[tuple[str, str]] = Counter()
        self.errors: Counter[str] = Counter()

    def look(self) -> None:
        """Read what is new."""
        if not self._assigned:
            partitions = self._consumer.list_topics(timeout=5).topics.get(DEAD_TOPIC)
            if partitions is None:
                return
            self._consumer.assign(
                [TopicPartition(DEAD_TOPIC, number, OFFSET_BEGINNING) for number in partitions.partitions]
            )
            self._assigned = True
        while True:
            messages = self._consumer.consume(500, 0.02)
            for message in messages:
                if message.error() is None:
                    headers: dict[str, Any] = dict(headers_of(message) or ())
                    where = tuple(
                        (headers.get(f"streamloop-original-{name}") or b"?").decode()
                        for name in ("partition", "offset")
                    )
                    self.origins[where[0], where[1]] += 1
                    self.errors[(headers.get("streamloop-error-class") or b"?").decode()] += 1
            if not messages:
                return


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the replay brought back. ``still_dead``: orders that are dead letters and nothing else."""

    summary: ReplaySummary
    still_dead: int


def replay(brokers: str, expected: Expected) -> Replayed:
    """Bring back what the payment service refused: it is mended; what can't be decoded stays dead."""
    options = {"brokers": [brokers], "group": GROUP, "retry_topics": ["1s", "2s"]}
    letters = dlq.DeadLetters(Settings.load(options, env={}).settings)
    where = Filter(errors=("ConnectionError",))
    console.print(f"the payment service is back: replaying its {expected.failing_for_ever} dead orders")
    summary = letters.replay(where, ReplayPlan(settle=20), by="demo")
    left = {letter.original for letter in letters.letters(only_open=True)}
    return Replayed(summary, len(left))


@dataclass(slots=True)
class Progress:
    """What has happened so far."""

    expected: Expected
    journal: Journal
    dead: DeadLetters
    services: list[Service] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    first_handled: float | None = None
    last_handled: float = 0.0
    killed_after: int = 0
    before: tuple[Counter[int], Counter[tuple[str, str]]] | None = None
    """What was handled, and what was dead, before anything was replayed."""
    back: Replayed | None = None

    def look(self) -> None:
        """Read what is new."""
        before = len(self.journal.handled)
        self.journal.look()
        self.dead.look()
        self.services[-1].look()
        now = time.monotonic()
        if len(self.journal.handled) > before and self.before is None:
            self.first_handled = self.first_handled or now
            self.last_handled = now

    @property
    def brought_back(self) -> int:
        """Orders that were handled only after the replay had begun."""
        return 0 if self.before is None else len(set(self.journal.handled) - set(self.before[0]))

    @property
    def finished(self) -> bool:
        """Every order was handled or is a dead letter."""
        return len(self.journal.handled) + len(self.dead.origins) >= self.expected.produced

    @property
    def lost(self) -> int:
        """Orders that are neither handled nor dead letters."""
        handled, dead = self.before or (self.journal.handled, self.dead.origins)
        return self.expected.produced - len(handled) - len(dead)

    @property
    def pause(self) -> str:
        """Why nothing moves now; empty when something may."""
        if self.services[-1].status.get("partitions"):
            return ""
        if len(self.services) == 1:
            return "  starting and joining the group: the embedded broker takes 3 s for that"
        return f"  the group still waits for the killed member: its session ends after {SESSION} s"

    def line(self) -> str:
        """One line for people."""
        status = self.services[-1].status
        if pause := self.pause:
            return (
                f"{time.monotonic() - self.began:5.1f} s  handled {len(self.journal.handled):6,} of "
                f"{self.expected.produced:,}{pause}"
            )
        partitions = status.get("partitions", ())
        buffered = sum(intake["buffered"] for intake in status.get("intakes", ()))
        held = Counter(reason for each in partitions for reason in each["held"])
        return (
            f"{time.monotonic() - self.began:5.1f} s  handled {len(self.journal.handled):6,} of "
            f"{self.expected.produced:,}  dead letters {len(self.dead.origins):3}  in flight {buffered:4}  "
            f"held {', '.join(f'{reason} {number}' for reason, number in held.items()) or '-'}"
        )


def wait(progress: Progress, until: Callable[[], bool], deadline: float, what: str) -> None:
    """Show progress until the condition holds. SystemExit when the time is over or the service has ended."""
    terminal = console.is_terminal
    say_at = 0.0
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            progress.look()
            if terminal:
                live.update(progress.line(), refresh=True)
            elif time.monotonic() >= say_at:
                console.print(progress.line(), highlight=False)
                say_at = time.monotonic() + 2.0
            if until():
                return
            service = progress.services[-1]
            if service.process.poll() is not None:
                raise SystemExit(
                    f"demo: the service ended by itself, exit code {service.process.returncode}; its log:\n"
                    + service.status_file.with_name(f"log-{len(progress.services)}.txt").read_text()[-4000:]
                )
            if time.monotonic() > deadline:
                raise SystemExit(f"demo: gave up while waiting until {what}: {progress.line()}")
            time.sleep(0.1)


def summary(progress: Progress, exit_code: int) -> dict[str, Any]:
    """The sums."""
    counts: Counter[str] = Counter()
    held: Counter[str] = Counter()
    peak = watermark = 0
    for service in progress.services:
        counts.update(service.counts())
        held.update(service.status.get("held_seconds", {}))
        for intake in service.status.get("intakes", ()):
            peak = max(peak, intake["peak_messages"])
            watermark = max(watermark, intake["high_watermark_messages"])
    handled, dead = progress.before or (progress.journal.handled, progress.dead.origins)
    again = sum(handled.values()) - len(handled)
    seconds = progress.last_handled - (progress.first_handled or progress.last_handled)
    return {
        "produced": progress.expected.produced,
        "acked": len(handled),
        "retried": counts["retried_in_place"] + counts["routed"],
        "dead_lettered": len(dead),
        "redelivered": again + sum(dead.values()) - len(dead),
        "lost": progress.lost,
        "held_seconds": {reason: round(value, 1) for reason, value in held.items() if value >= 0.05},
        "messages_per_second": round(len(handled) / seconds) if seconds > 0 else 0,
        "max_in_flight": peak,
        "high_watermark": watermark,
        "killed_after": progress.killed_after,
        "replayed": progress.back.summary.replayed if progress.back is not None else 0,
        "handled_after_replay": progress.brought_back,
        "still_dead": progress.back.still_dead if progress.back is not None else len(dead),
        "exit_code": exit_code,
        "seconds": round(time.monotonic() - progress.began, 1),
    }


def problems(sums: dict[str, Any], expected: Expected) -> list[str]:
    """What does not add up."""
    found = []
    if sums["lost"] != 0:
        found.append(f"{sums['lost']} orders are neither handled nor dead letters")
    if sums["acked"] != expected.acked:
        found.append(f"{sums['acked']} orders were handled, and {expected.acked} can be")
    if sums["dead_lettered"] != expected.dead:
        found.append(f"{sums['dead_lettered']} are dead letters, and {expected.dead} should be")
    if sums["replayed"]:
        if sums["handled_after_replay"] != expected.failing_for_ever:
            found.append(
                f"{sums['handled_after_replay']} orders were handled after their replay, and "
                f"{expected.failing_for_ever} should be"
            )
        if sums["still_dead"] != expected.undecodable:
            found.append(f"{sums['still_dead']} are still dead, and {expected.undecodable} should be")
    if sums["exit_code"] != 0:
        found.append(f"the service ended with exit code {sums['exit_code']} after SIGTERM")
    return found


def show(sums: dict[str, Any], progress: Progress) -> None:
    """The table."""
    expected = progress.expected
    table = Table(title="What happened to 20,000 orders", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, value, note in (
        ("produced", sums["produced"], f"{expected.slow} of them for one slow customer"),
        ("acked", sums["acked"], "handled, and acknowledged after that"),
        (
            "retried",
            sums["retried"],
            f"{expected.failing_for_a_while} failed for a while (in place, then retry topics)",
        ),
        (
            "dead-lettered",
            sums["dead_lettered"],
            f"{expected.undecodable} undecodable, {expected.failing_for_ever} failing for ever",
        ),
        ("redelivered", sums["redelivered"], f"SIGKILL after {sums['killed_after']:,} handled orders"),
        ("lost", sums["lost"], "must be 0"),
        (
            "replayed",
            sums["replayed"],
            f"{sums['handled_after_replay']} orders handled now",
        ),
        ("still dead", sums["still_dead"], "undecodable: 'streamloop dlq ls' would show them"),
        ("messages/s", sums["messages_per_second"], "restart included"),
        ("max in flight", sums["max_in_flight"], f"high watermark {sums['high_watermark']:,}"),
    ):
        table.add_row(name, f"{value:,}", note)
    for reason, seconds in sums["held_seconds"].items():
        table.add_row("held", f"{seconds:,} s", f"partition-seconds: {reason}")
    console.print(table)


def main() -> int:
    """Run the demo; returns the exit code."""
    deadline = time.monotonic() + TIME_LIMIT
    broker = EmbeddedBroker()
    console.print(f"embedded broker on {broker.address}", highlight=False)
    expected = broker.produce(ORDERS)
    console.print(f"produced {expected.produced:,} orders", highlight=False)
    with tempfile.TemporaryDirectory(prefix="streamloop-demo-") as name:
        folder = Path(name)
        progress = Progress(expected, Journal(folder / "journal"), DeadLetters(broker.address))
        half = expected.acked // 2
        try:
            progress.services.append(Service.start(folder, 1, broker.address))
            wait(progress, lambda: len(progress.journal.handled) >= half, deadline, "half is handled")
            progress.services[-1].process.kill()
            progress.services[-1].process.wait()
            progress.look()
            progress.killed_after = len(progress.journal.handled)
            console.print(
                f"SIGKILL after {progress.killed_after:,} handled orders; starting it again", highlight=False
            )
            progress.services.append(Service.start(folder, 2, broker.address))
            wait(progress, lambda: progress.finished, deadline, "everything is handled")
            progress.before = (progress.journal.handled.copy(), progress.dead.origins.copy())
            (folder / MENDED).touch()
            progress.back = replay(broker.address, expected)
            wait(
                progress,
                lambda: progress.brought_back >= expected.failing_for_ever,
                deadline,
                "what was replayed is handled",
            )
            progress.services[-1].process.terminate()
            exit_code = progress.services[-1].process.wait(timeout=max(1.0, deadline - time.monotonic()))
            progress.look()
        finally:
            for service in progress.services:
                if service.process.poll() is None:
                    service.process.kill()
                    service.process.wait()
    sums = summary(progress, exit_code)
    show(sums, progress)
    wrong = problems(sums, expected)
    for problem in wrong:
        console.print(f"[red]{problem}[/red]")
    print(json.dumps(sums), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.stdout.flush()
    # Not sys.exit: librdkafka's embedded broker may take its time to end its threads.
    code = main()
    sys.stdout.flush()
    os._exit(code)
