"""Fixtures for tests on a real Apache Kafka, and the rule for machines that can't run one.

Every test in this folder bears the marker `broker`. Where Java or Maven is missing these tests are skipped,
with one line that says what to install; with REQUIRE_BROKER=1 (CI) the same is a failure.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.realkafka import KafkaCluster, KafkaUnavailableError, Members, fetch_jars
from tests.realkafka.client import unique_name
from tests.realkafka.jars import java
from tests.unavailable import give_up

HERE = Path(__file__).parent
UNAVAILABLE = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("broker")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch the jars here, where no test's time-out runs, and only when a test needs them."""
    if session.config.option.collectonly or not any(
        item.get_closest_marker("broker") for item in session.items
    ):
        return
    try:
        java()
        fetch_jars()
    except KafkaUnavailableError as error:
        session.config.stash[UNAVAILABLE] = str(error)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    reason = item.config.stash.get(UNAVAILABLE, None)
    if reason is not None and item.get_closest_marker("broker") is not None:
        give_up("broker", reason)


class _Clusters:
    """The clusters that the whole run shares; each is started by the first test that asks for it."""

    def __init__(self) -> None:
        self._started: dict[int, KafkaCluster] = {}

    def of(self, nodes: int) -> KafkaCluster:
        if nodes not in self._started:
            cluster = KafkaCluster(nodes)
            cluster.start()
            self._started[nodes] = cluster
        return self._started[nodes]

    def heal(self) -> None:
        for cluster in self._started.values():
            cluster.heal()

    def stop(self) -> None:
        for cluster in self._started.values():
            cluster.stop()


@pytest.fixture(scope="session")
def _clusters() -> Iterator[_Clusters]:
    clusters = _Clusters()
    try:
        yield clusters
    finally:
        clusters.stop()


@pytest.fixture(scope="session")
def kafka(_clusters: _Clusters) -> KafkaCluster:
    """One node, shared by the run. A test that hurts it gets it healed before the next one."""
    return _clusters.of(1)


@pytest.fixture(scope="session")
def kafka3(_clusters: _Clusters) -> KafkaCluster:
    """Three nodes, replication factor 3, min.insync.replicas 2, shared by the run and healed like `kafka`."""
    return _clusters.of(3)


@pytest.fixture(autouse=True)
def _healed_clusters(_clusters: _Clusters) -> Iterator[None]:
    yield
    _clusters.heal()


@pytest.fixture
def fresh_kafka() -> Iterator[KafkaCluster]:
    """One node for this test alone: for a broker that is to be down first, or that may be spoiled."""
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture
def topic(kafka: KafkaCluster, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes a topic on `kafka` named after the test: topic(partitions=1, config=None, name=None)."""

    def make(partitions: int = 1, *, config: dict[str, str] | None = None, name: str | None = None) -> str:
        return kafka.create_topic(partitions, name=name, prefix=request.node.name, config=config)

    return make


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group name that no other test uses."""
    return unique_name(request.node.name)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    """Starts member processes; they are killed and reaped when the test ends."""
    started = Members(tmp_path)
    try:
        yield started
    finally:
        started.end()
        print(started.transcript())  # shown when the test failed
