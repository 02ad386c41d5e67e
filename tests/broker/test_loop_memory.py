"""What stays bounded however much waits behind a handler that does not get on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.produce import produce
from tests.broker.loops.inprocess import Running, loop_on
from tests.realkafka import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.realkafka import KafkaCluster

BACKLOG = 1_000_000
HIGH = 1_000
ONE_FETCH = 500
MIB = 1024 * 1024


def resident() -> int:
    """Bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux' /proc")
def test_B9_a_million_messages_behind_a_stalled_handler_take_no_more_memory_than_the_watermark(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    name = topic(4)
    produce(kafka.bootstrap, name, BACKLOG, keys=1_000, size=100)
    loop = loop_on(kafka, group, high_watermark_messages=HIGH, prefetch_bytes="4MiB", drain_timeout=0)
    never = asyncio.Event()

    @loop.consumer(name, ordering="key", concurrency=50, timeout=600)
    async def stalled(_value: bytes) -> None:
        await never.wait()

    with Running(loop) as running:
        wait_until(
            lambda: loop.status() is not None and len(running.held(name, 0)) > 0,
            60,
            "the buffer to be full and its partitions to be held",
        )
        run = loop._run
        assert run is not None
        assert run.parts is not None
        poller = run.parts.pollers[0]
        at_first, turns = resident(), poller.stats.turns
        # Held, it goes on polling: a leak of a buffer, a fetch or a look at a turn would show.
        wait_until(lambda: poller.stats.turns >= turns + 100, 60, "a hundred turns of the poller")
        assert resident() - at_first < 32 * MIB
        intake = running.status().intakes[0]
        assert HIGH <= intake.peak_messages <= HIGH + ONE_FETCH
        assert intake.buffered <= HIGH + ONE_FETCH
        assert sum(part.gap for part in running.status().partitions) <= 2 * (HIGH + ONE_FETCH)
