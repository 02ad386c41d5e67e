"""Kafka itself reads the settings that docker-compose.yml gives to its container, and starts with them."""

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.realkafka import fetch_jars, wait_until
from tests.realkafka.children import Child
from tests.realkafka.jars import java
from tests.realkafka.node import HOST, TEST_JVM, free_ports
from tests.stack.names import ROOT
from tests.tools import Compose

START_SECONDS = 90.0
CLUSTER_ID = "c3RyZWFtbG9vcC1jb21wbw"


@pytest.fixture
def container_settings(compose: Compose) -> dict[str, str]:
    """Kafka's properties as its image makes them of the variables in docker-compose.yml."""
    environment: dict[str, Any] = compose.project(ROOT / "docker-compose.yml")["services"]["kafka"][
        "environment"
    ]
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in environment.items()
        if name != "KAFKA_HEAP_OPTS"
    }


def test_kafka_starts_with_the_settings_of_its_container(
    container_settings: dict[str, str], tmp_path: Path
) -> None:
    inside, outside, controller = free_ports(3)
    properties = tmp_path / "server.properties"
    text = "".join(f"{name}={value}\n" for name, value in container_settings.items())
    # The same on free ports of this machine, with its data here.
    for there, here in (
        ("INTERNAL://:19092,HOST://:9092", f"INTERNAL://{HOST}:{inside},HOST://{HOST}:{outside}"),
        ("INTERNAL://kafka:19092", f"INTERNAL://{HOST}:{inside}"),
        ("HOST://localhost:9092", f"HOST://{HOST}:{outside}"),
        ("localhost:9093", f"{HOST}:{controller}"),
        ("/var/lib/kafka/data", str(tmp_path / "data")),
    ):
        assert there in text
        text = text.replace(there, here)
    properties.write_text(text, encoding="utf-8")
    command = [java(), *TEST_JVM, "-cp", f"{fetch_jars()}/*"]
    log = tmp_path / "log.txt"
    formatted = subprocess.run(
        [
            *command,
            "kafka.tools.StorageTool",
            "format",
            "-t",
            CLUSTER_ID,
            "-c",
            str(properties),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert formatted.returncode == 0, formatted.stdout + formatted.stderr
    with log.open("ab") as output:
        child = Child([*command, "kafka.Kafka", str(properties)], stdout=output, cwd=tmp_path, env=os.environ)
    try:
        admin = AdminClient({"bootstrap.servers": f"{HOST}:{outside}", "log_level": 0})

        def listed() -> bool:
            assert child.running, log.read_text(errors="replace")[-2000:]
            with socket.socket() as probe:
                if probe.connect_ex((HOST, outside)) != 0:
                    return False
            return len(admin.list_topics(timeout=10).brokers) == 1

        wait_until(listed, START_SECONDS, lambda: log.read_text(errors="replace")[-2000:])
    finally:
        child.end(0)
