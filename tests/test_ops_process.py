"""A member process whose handler holds the interpreter's lock: what a probe sees, and how it ends.

No Python thread runs then, so that nobody answers: the timer in C writes the stacks and ends the process.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tests.mock_cluster import MockCluster
from tests.realkafka.waiting import wait_until
from tests.running_loop import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = """
import re
import streamloop.watchdog
from streamloop import StreamLoop

streamloop.watchdog.C_TIMER_MARGIN = 3.0
loop = StreamLoop("billing")

@loop.consumer("orders", retry_topics=(), timeout=0.5, kill_after=0.5)
async def charge(value: bytes) -> None:
    re.match(r"(a+)+$", value.decode())
"""


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic("orders", 1)
        cluster.create_topic("orders.billing.dlq", 1)
        yield cluster


def test_H8_a_regular_expression_that_backtracks_silences_the_probe_and_ends_the_process_with_stacks(
    mock: MockCluster, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "streamloop.cli.main", "run", "app:loop"),
                *("--brokers", mock.bootstrap, "--ops-address", "127.0.0.1:0"),
            ],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=output,
        )
    try:

        def listening() -> re.Match[str] | None:
            assert process.poll() is None, log.read_text()
            return re.search(r'"url":"(http://[0-9.:]+)"', log.read_text())

        found = wait_until(listening, 30, "the listener")
        assert found is not None
        url = found[1]
        wait_until(lambda: ask(f"{url}/ready").status == 200, 30, "readiness")
        producer = Producer({"bootstrap.servers": mock.bootstrap, "log_level": 0})
        producer.produce("orders", b"a" * 60 + b"b")
        assert producer.flush(10) == 0
        wait_until(lambda: not answers(url), 20, "silence")
        assert process.wait(30) == 1
    finally:
        process.kill()
        process.wait(10)
    stacks = log.read_text()
    assert "Timeout" in stacks
    assert "in charge" in stacks


def answers(url: str) -> bool:
    """Whether /live is answered within a second."""
    host, port = url.removeprefix("http://").split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(b"GET /live HTTP/1.0\r\n\r\n")
            return connection.recv(1) != b""
    except OSError:
        return False
