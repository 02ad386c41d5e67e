"""`make stack`: Kafka, Jaeger and Prometheus as native programs, a sample producer and two members.

The programs run with the very files that docker-compose.yml mounts; there is no Grafana, and Jaeger and
Prometheus answer by their APIs only. Everything listens on free ports of 127.0.0.1, keeps its data in a
temporary folder, and is ended with Ctrl-C or SIGTERM. It prints what to look at, then the orders that will
end as dead letters, as the shop sends them. It needs Java, Maven and Go the first time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tests.realkafka import KafkaCluster, KafkaUnavailableError, Member, Members
from tests.realkafka.node import HOST, free_ports
from tests.tools import JAEGER, PROMETHEUS, Jaeger, Prometheus, ToolUnavailableError, build

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOP: Final = "examples.orders.service:loop"
DRAIN_SECONDS: Final = 45.0
"""How long a member may take to end: its drain time, the close and the flush of its telemetry."""
SCRAPED_SECONDS: Final = 60.0


def say(text: str = "") -> None:
    """A line for people, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Stack:
    """All of it. Use it as a context manager; what was started is ended in the opposite order."""

    def __init__(self, *, members: int = 2, rate: float = 20.0, scrape_seconds: int | None = None) -> None:
        self._count = members
        self.rate = rate
        self._ends = contextlib.ExitStack()
        self.kafka = KafkaCluster()
        self.jaeger = Jaeger()
        self.prometheus = Prometheus(scrape_seconds=scrape_seconds)
        self.members: list[Member] = []
        self.addresses: list[str] = []
        """Where each member's probes and metrics are: host:port."""
        self.controls: list[str] = []
        """Where each member's /status and console are: host:port."""
        self.tokens = {name: secrets.token_urlsafe(18) for name in ("read", "act")}
        """For the console; made anew for each run."""
        self.producer: Member | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            for program in (self.jaeger, self.prometheus, self.kafka):
                started.enter_context(program)
            folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="streamloop-stack-")))
            processes = Members(folder)
            started.callback(self._end, processes)
            self._start(processes)
            self._ends = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def _start(self, processes: Members) -> None:
        telemetry = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.jaeger.otlp_grpc,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        }
        shop = {"KAFKA_BROKERS": self.kafka.bootstrap, "OTEL_SERVICE_NAME": "shop", **telemetry}
        self.producer = processes.start_module(
            "examples.orders.producer", "--rate", f"{self.rate:g}", name="producer", env=shop
        )
        ports = free_ports(2 * self._count)
        self.addresses = [f"{HOST}:{port}" for port in ports[: self._count]]
        self.controls = [f"{HOST}:{port}" for port in ports[self._count :]]
        for number in range(self._count):
            name = f"member-{number + 1}"
            own = {
                "STREAMLOOP_BROKERS": self.kafka.bootstrap,
                "STREAMLOOP_MEMBER": name,
                "STREAMLOOP_LOG_FORMAT": "json",
                "STREAMLOOP_OPS_ADDRESS": self.addresses[number],
                "STREAMLOOP_CONTROL_ADDRESS": self.controls[number],
                "STREAMLOOP_CONTROL_READ_TOKEN": self.tokens["read"],
                "STREAMLOOP_CONTROL_ACT_TOKEN": self.tokens["act"],
                "STREAMLOOP_CONSOLE": "true",
                "STREAMLOOP_JAEGER_URL": self.jaeger.url,
                # Prometheus scrapes: what is pushed as well would be counted twice.
                "STREAMLOOP_METRICS_EXPORTER": "none",
                **telemetry,
            }
            self.members.append(
                processes.start_module("streamloop.cli.main", "run", LOOP, name=name, env=own)
            )
        self.prometheus.scrape(self.addresses)

    def _end(self, processes: Members) -> None:
        ending = [member for member in (self.producer, *self.members) if member is not None]
        for member in ending:
            if member.running:
                member.terminate()
        for member in ending:
            try:
                member.wait(DRAIN_SECONDS)
            except AssertionError:
                say(f"{member.name} did not end within {DRAIN_SECONDS:g} s and is killed")
        processes.end()

    def ended(self) -> Member | None:
        """The first process that ended by itself."""
        return next((m for m in (self.producer, *self.members) if m is not None and not m.running), None)


def guide(stack: Stack) -> str:
    """What there is to look at."""
    members = "\n".join(
        f"  {member.name:<12} http://{address}/metrics   /ready   /live"
        for member, address in zip(stack.members, stack.addresses, strict=True)
    )
    # As it is typed in this folder: the environment is not always active in another terminal.
    program = os.path.relpath(Path(sys.executable).with_name("streamloop"))
    return f"""
  Kafka        {stack.kafka.bootstrap}
  Jaeger       {stack.jaeger.url}/api/v3/services        (its API; the web pages come with docker compose)
  Prometheus   {stack.prometheus.url}/api/v1/query?query=loop_lag_seconds   /api/v1/alerts   /api/v1/rules
{members}
  console      http://{stack.controls[0]}/console/
               read token {stack.tokens["read"]}, act token {stack.tokens["act"]}

The shop sends {stack.rate:g} orders a second; a few fail for a while, one in a hundred for ever.
From another terminal:

  {program} top {" ".join(stack.controls)}
  {program} group --group billing --brokers {stack.kafka.bootstrap}
  {program} dlq ls --group billing --brokers {stack.kafka.bootstrap}
  {program} trace orders PARTITION OFFSET --brokers {stack.kafka.bootstrap} --jaeger {stack.jaeger.url}

Ctrl-C ends everything. Orders that will be dead letters in about 20 s, once their retries are over:
"""


def follow(stack: Stack, stop: threading.Event) -> int:
    """Print what the shop says until the stop, or until a process has ended; returns the exit code."""
    seen = 0
    while not stop.wait(0.5):
        if stack.producer is not None:
            lines = stack.producer.lines
            for line in lines[seen:]:
                if not line.startswith("%"):  # not what librdkafka says of a broker that has just begun
                    say(f"  {line}")
            seen = len(lines)
        gone = stack.ended()
        if gone is not None:
            last = "\n".join(gone.lines[-15:])
            sys.stderr.write(f"{gone.name} ended by itself; its last lines:\n{last}\n")
            return 1
    return 0


def main(argv: Sequence[str]) -> int:
    """Run it until Ctrl-C; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m stack.run", description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=2, help="how many members (default: 2)")
    parser.add_argument("--rate", type=float, default=20.0, help="orders a second (default: 20)")
    options = parser.parse_args(argv)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        for tool in (PROMETHEUS, JAEGER):
            if not tool.path.is_file():
                say(f"building {tool.name} {tool.version}, once on this machine: this takes minutes")
                build(tool)
        say("starting Jaeger, Prometheus, Kafka, the shop and the members")
        with Stack(members=options.members, rate=options.rate) as stack:
            say(guide(stack))
            code = follow(stack, stop)
            say("ending: the members drain")
        return code
    except (KafkaUnavailableError, ToolUnavailableError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
