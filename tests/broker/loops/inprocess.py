"""A StreamLoop that runs in a thread of the test's process, so that a test can look at it from outside.

What calls it: the tests of whole loops. Each one that was started is stopped when the test is over. What
needs signals, exit codes or a crash runs in a process of its own instead (service.py).
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import pytest

from streamloop import StreamLoop
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from streamloop.lifecycle import RunResult
    from streamloop.status import LoopStatus, PartitionStatus
    from tests.realkafka import KafkaCluster

QUICK: dict[str, Any] = {
    "commit_interval": 0.1,
    "backoff_base": 0.01,
    "backoff_cap": 0.05,
    "drain_timeout": 20,
}
"""Settings that a test has no reason to wait for."""


def loop_on(cluster: KafkaCluster, group: str, **settings: Any) -> StreamLoop[Any]:
    """A loop on this cluster with quick settings."""
    return StreamLoop(group, brokers=cluster.bootstrap, **{**QUICK, **settings})


class Running:
    """A loop that runs in a daemon thread until the block ends. ``bounds`` are those of loop.run()."""

    def __init__(self, loop: StreamLoop[Any], **bounds: Any) -> None:
        self.loop = loop
        self._bounds = bounds
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._result = self.loop.run(handle_signals=False, **self._bounds)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.stop()
        self._thread.join(60)
        if error is None:
            assert not self._thread.is_alive(), "the loop did not end"

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout: float = 60.0) -> RunResult:
        """How the run ended by itself; raises what it raised."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"the loop still runs after {timeout:g} s: {self.loop.status()}"
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def stop(self, timeout: float = 60.0) -> RunResult:
        """Drain it, and say how it ended."""
        self.loop.stop()
        return self.wait(timeout)

    def status(self) -> LoopStatus:
        """What it does; only once it runs."""
        status = self.loop.status()
        assert status is not None
        return status

    def partition(self, topic: str, partition: int) -> PartitionStatus | None:
        """One partition, if it is assigned."""
        status = self.loop.status()
        for each in status.partitions if status is not None else ():
            if (each.topic, each.partition) == (topic, partition):
                return each
        return None

    def held(self, topic: str, partition: int) -> dict[str, str]:
        """Why a partition is held."""
        found = self.partition(topic, partition)
        return {} if found is None else found.held

    def metric(self, name: str, **labels: str) -> float:
        """The sum over the series that have these labels."""
        return sum(
            value
            for series, value in self.loop.metrics().get(name, {}).items()
            if labels.items() <= dict(series).items()
        )

    def counts(self) -> Counter[str]:
        """Counters over all consumers."""
        total: Counter[str] = Counter()
        status = self.loop.status()
        for consumer in status.consumers if status is not None else ():
            total.update(consumer.counts)
        return total

    def until(self, condition: Callable[[], Any], timeout: float = 60.0, what: str = "the condition") -> None:
        """Wait for a condition; at once an error when the loop ends first."""

        def look() -> Any:
            answer = condition()
            if not answer and self.ended:
                pytest.fail(f"the loop ended before {what}: {self._result or self._error!r}", pytrace=False)
            return answer

        wait_until(look, timeout, lambda: f"{what}; {self.loop.health()}; {self.loop.status()}")
