"""`streamloop dlq` without a broker: what is refused, and what is told to be done next."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from typing import Any

from click.testing import CliRunner
from confluent_kafka import Producer
from rich.console import Console

from streamloop.cli import main as cli
from streamloop.cli.dlq_options import again_of, shown_progress
from streamloop.dlq.reading import Progress
from tests.dead_letters import own_headers
from tests.mock_cluster import MockCluster


def test_raw_refuses_a_terminal() -> None:
    master, slave = pty.openpty()
    try:
        command = [
            sys.executable,
            "-m",
            "streamloop.cli.main",
            "dlq",
            "show",
            "orders.billing.dlq/0/1",
            "--raw",
        ]
        done = subprocess.run(
            [*command, "--brokers", "127.0.0.1:9"],
            stdout=slave,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(slave)
        os.close(master)
    assert done.returncode == 2
    assert "--raw writes bytes that a terminal might obey" in done.stderr


def test_no_broker_is_a_sentence() -> None:
    arguments = ["dlq", "ls", "--group", "billing", "--set", "kafka.common.socket.timeout.ms=1000"]
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 2
    assert "Which brokers? Give --brokers" in result.stderr


def test_librdkafkas_own_mock_broker_is_enough_to_look() -> None:
    with MockCluster() as cluster:
        dead = cluster.create_topic("orders.billing.dlq", 2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for partition in (0, 1, 1):
            headers: Any = own_headers()
            producer.produce(dead, b"value", headers=headers, partition=partition)
        assert producer.flush(10) == 0
        arguments = ["--brokers", cluster.bootstrap, "--group", "billing"]
        listed = CliRunner().invoke(cli.main, ["dlq", "ls", "--since", "2099-01-01T00:00:00Z", *arguments])
        assert listed.exit_code == 0, listed.output
        assert "0 dead letters in orders.billing.dlq; 3 did not match" in listed.stdout
        listed = CliRunner().invoke(cli.main, ["dlq", "ls", *arguments])
        assert "3 dead letters in orders.billing.dlq: 3 open, 1 group" in listed.stdout
        shown = CliRunner().invoke(cli.main, ["dlq", "show", f"{dead}/1/1", *arguments])
        assert f"{dead}/1/1 is dead: Declined: card 7 was declined" in shown.stdout


def test_the_options_are_repeated_for_the_next_command_but_no_secrets() -> None:
    given: dict[str, Any] = {
        "brokers": "a:1,b:2",
        "group": "bill ing",
        "config": None,
        "app": None,
        "others": ("member=x", "sasl_password=secret", "kafka.common.ssl.key.password=secret"),
    }
    assert again_of(given) == " --brokers a:1,b:2 --group 'bill ing' --set member=x"
    assert again_of({**given, "app": "app:loop", "others": ()}) == " --brokers a:1,b:2 --app app:loop"
    assert again_of({**given, "group": None, "others": ()}, "billing") == " --brokers a:1,b:2 --group billing"


def test_progress_is_for_terminals() -> None:
    out = io.StringIO()
    with shown_progress(Console(file=out, force_terminal=True, width=120)) as show:
        show(Progress(1_000, 2_000, 8_000, 0.5))
    assert "1,000 records, 25 % of 8,000 offsets, 2,000/s" in out.getvalue()
    out = io.StringIO()
    with shown_progress(Console(file=out)) as show:
        show(Progress(1_000, 2_000, 8_000, 0.5))
    assert out.getvalue() == ""
