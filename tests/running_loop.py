"""A whole loop on librdkafka's mock cluster, in a thread of the test's process, for tests of what it shows.

The mock cluster proves how our own parts behave, never what a broker guarantees.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from confluent_kafka import Producer

from streamloop import StreamLoop
from tests.mock_cluster import MockCluster
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from streamloop.lifecycle import Run, RunResult

ACT = "act-token-of-this-test"
READ = "read-token-of-this-test"


class Reply(NamedTuple):
    """What was answered; ``headers`` by lower-case name."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    url: str, *, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
) -> Reply:
    """One request. URLError when nobody answers within 5 s."""
    request = urllib.request.Request(url, data=body, headers=headers or {}, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=5) as answer:
            return Reply(answer.status, {n.lower(): v for n, v in answer.headers.items()}, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, {n.lower(): v for n, v in error.headers.items()}, error.read())


class RunningLoop:
    """The loop of group 'billing' with handler 'charge' of 'orders' (two partitions), as a context manager.

    ``options`` are those of the handler, ``settings`` the loop's.
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        options: dict[str, Any] | None = None,
        retry_topics: tuple[str, ...] = (),
        **settings: object,
    ) -> None:
        self._mock = MockCluster()
        self._handler = handler
        self._options = options or {}
        self._retry_topics = retry_topics
        self._settings = settings
        self.result: RunResult | None = None
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._mock.__enter__()
        retries = [f"orders.billing.retry.{delay}" for delay in self._retry_topics]
        for topic in ("orders", "orders.billing.dlq", *retries):
            self._mock.create_topic(topic, 2)
        self.producer = Producer({"bootstrap.servers": self._mock.bootstrap, "log_level": 0})
        self.loop = StreamLoop(
            "billing",
            **{
                "brokers": self._mock.bootstrap,
                "member": "member-1",
                "commit_interval": 0.1,
                "ops_address": "127.0.0.1:0",
                "control_address": "127.0.0.1:0",
                "kafka": {"common": {"log_level": 0}},
                "tracing": "off",  # a process has one tracer provider, for good
                **self._settings,
            },
        )
        self.loop.consumer("orders", name="charge", retry_topics=self._retry_topics, **self._options)(
            self._handler
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_until(lambda: self.error or self._listens(), 30, "listeners")
        return self

    def _listens(self) -> bool:
        run = self.loop._run
        if run is None:
            return False
        asked = (run.settings.ops_address, run.settings.control_address)
        return len(run.operations.urls) == sum(each is not None for each in asked)

    def _run(self) -> None:
        try:
            self.result = self.loop.run(handle_signals=False)
        except BaseException as error:
            self.error = error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._mock.__exit__(kind, error, trace)

    def stop(self) -> None:
        """Drain it."""
        self.loop.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()

    @property
    def run(self) -> Run:
        assert self.loop._run is not None
        return self.loop._run

    def ops(self, path: str, **request: Any) -> Reply:
        """Ask the listener of probes and metrics."""
        return ask(self.run.operations.urls["ops_address"] + path, **request)

    def control(self, path: str, **request: Any) -> Reply:
        """Ask the control listener."""
        return ask(self.run.operations.urls["control_address"] + path, **request)

    def send(self, *values: bytes, partition: int = 0) -> None:
        """Produce these, one after the other."""
        for value in values:
            self.producer.produce("orders", value, partition=partition)
        assert self.producer.flush(10) == 0

    def metric(self, name: str, **labels: str) -> float:
        """The sum over the series that have these labels."""
        series = self.loop.metrics().get(name, {})
        return sum(value for each, value in series.items() if labels.items() <= dict(each).items())
