"""A million dead letters grouped: how long it takes and how much memory, beside a bare consume loop.

Rivals, each in a process of its own, round by round on the same topic of one real Kafka: `dlq ls` as the
command line runs it where nothing was replayed (bounds, headers, groups), a bare loop that only counts
messages, and a bare loop that also asks for each message's headers. Shown are medians; the ratios are of CPU
time (all threads of the process), which other work on the machine changes least. The last line is JSON. It
judges no figure.

    python -m benchmarks.dead_letters --letters 1000000 --rounds 3
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from rich.console import Console
from rich.table import Table

from streamloop.dlq.listing import read_groups
from streamloop.dlq.reading import open_bounds, reader_config
from streamloop.engine.retry import Failure, Kind
from streamloop.kafka import headers as hd
from streamloop.settings import Settings
from tests.realkafka import KafkaCluster, KafkaUnavailableError
from tests.realkafka.node import BENCH_JVM

PARTITIONS = 4
VALUE_BYTES = 200
FINGERPRINTS = 40
GROUP = "billing"
TOPIC = f"orders.{GROUP}.dlq"
RIVALS = ("bare", "headers", "ls")


def fill(brokers: str, letters: int) -> None:
    """Dead letters as members write them, of 40 kinds of errors, each with 20 headers."""
    producer = Producer(
        {
            "bootstrap.servers": brokers,
            "linger.ms": 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 500_000,
        }
    )
    draw = random.Random(1)
    value = bytes(draw.getrandbits(8) for _ in range(VALUE_BYTES))
    now = round(time.time() * 1000) - letters
    for number in range(letters):
        kind = min(int(draw.expovariate(0.2)), FINGERPRINTS - 1)
        failure = Failure(
            Kind.TRANSIENT,
            f"shop.errors.Declined{kind}",
            f"card {number} of customer {number % 977} was declined by the bank",
            f"{kind:016x}",
        )
        headers: Any = hd.route_headers(
            [("traceparent", b"00-%032x-%016x-01" % (number + 1, number + 1))],
            target=hd.Target.DEAD,
            routing=None,
            source=hd.Coordinates("orders", number % PARTITIONS, number, now + number),
            failure=failure,
            group=GROUP,
            attempt=6,
            now_ms=now + number,
        )
        while True:
            try:
                producer.produce(TOPIC, value, b"%d" % number, headers=headers, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    if left:
        raise SystemExit(f"{left} dead letters have no report")


def bare(settings: Settings, *, headers: bool) -> int:
    """Read to the ends and count. Its client has the same properties."""
    consumer = Consumer(reader_config(settings))
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    seen = ended = 0
    while ended < PARTITIONS:
        for message in consumer.consume(500, 0.1):
            error = message.error()
            if error is None:
                seen += 1
                if headers:
                    message.headers()
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
    consumer.close()
    return seen


def run(rival: str, brokers: str) -> dict[str, Any]:
    """One rival in this process: letters, seconds from before the first question, peak memory."""
    settings = Settings(brokers=(brokers,), group=GROUP)
    began, cpu_began = time.perf_counter(), time.process_time()
    groups = 0
    if rival == "ls":
        found = read_groups(settings, [TOPIC], bounds=open_bounds(settings, [TOPIC]))
        assert found.complete
        letters, groups = found.letters, len(found.groups)
    else:
        letters = bare(settings, headers=rival == "headers")
    return {
        "letters": letters,
        "groups": groups,
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(time.process_time() - cpu_began, 2),
        "peak_mib": peak_mib(),
    }


def peak_mib() -> int:
    """This program's largest resident size. (ru_maxrss would count the parent's, from before the exec.)"""
    status = Path("/proc/self/status").read_text("ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) // 1024


def one_round(brokers: str, letters: int) -> dict[str, dict[str, Any]]:
    """Each rival once, in a process of its own."""
    answers: dict[str, dict[str, Any]] = {}
    for rival in RIVALS:
        command = [sys.executable, "-m", "benchmarks.dead_letters", "--one", rival, brokers]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        if found["letters"] != letters:
            raise SystemExit(f"{rival} saw {found['letters']} of {letters} letters")
        answers[rival] = found
    return answers


def show(console: Console, letters: int, groups: int, answer: dict[str, Any]) -> None:
    """The medians, with the ratios of CPU time."""
    table = Table(title=f"{letters:,} dead letters, {groups} groups", title_justify="left")
    for name in ("rival", "seconds", "of CPU", "letters/s", "peak memory", "dlq ls takes"):
        table.add_column(name, justify="left" if name == "rival" else "right")
    names = {"bare": "consume loop", "headers": "consume loop, headers read", "ls": "dlq ls"}
    for rival, name in names.items():
        found = answer[rival]
        table.add_row(
            name,
            f"{found['seconds']:.1f}",
            f"{found['cpu_seconds']:.1f}",
            f"{letters / found['seconds']:,.0f}",
            f"{found['peak_mib']} MiB",
            "" if rival == "ls" else f"{answer[f'ls/{rival}']:.1f} x CPU",
        )
    console.print(table)


@click.command()
@click.option("--letters", default=1_000_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--one", hidden=True, nargs=2, help="A rival and the brokers: run it in this process.")
def main(letters: int, rounds: int, one: tuple[str, str] | None) -> None:
    """Group dead letters on a real Kafka, beside bare loops."""
    if one is not None:
        print(json.dumps(run(*one)))
        return
    console = Console(highlight=False)
    seen: list[dict[str, dict[str, Any]]] = []
    try:
        with KafkaCluster(jvm=BENCH_JVM) as cluster:
            cluster.create_topic(PARTITIONS, name=TOPIC)
            fill(cluster.bootstrap, letters)
            held = sum(cluster.end_offsets(TOPIC).values())
            if held != letters:
                raise SystemExit(f"{TOPIC} has {held} letters instead of {letters}")
            for number in range(rounds):
                seen.append(one_round(cluster.bootstrap, letters))
                said = (f"{rival} {found['seconds']:g} s" for rival, found in seen[-1].items())
                console.print(f"  round {number + 1}: {', '.join(said)}")
    except KafkaUnavailableError as error:
        sys.exit(str(error))
    answer: dict[str, Any] = {"letters": letters}
    for rival in RIVALS:
        answer[rival] = {
            "seconds": statistics.median(each[rival]["seconds"] for each in seen),
            "cpu_seconds": statistics.median(each[rival]["cpu_seconds"] for each in seen),
            "peak_mib": max(each[rival]["peak_mib"] for each in seen),
        }
    for rival in ("bare", "headers"):
        answer[f"ls/{rival}"] = round(answer["ls"]["cpu_seconds"] / answer[rival]["cpu_seconds"], 2)
    show(console, letters, seen[0]["ls"]["groups"], answer)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
