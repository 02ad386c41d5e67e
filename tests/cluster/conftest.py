"""The fixtures `cluster`, `release` and `namespace`, and the rule for machines that can't have them.

Every test that asks for one of them bears the marker `cluster`; those that also need a real Kafka bear
`broker` as well. Where Go or openssl (or Java and Maven) is missing they are skipped, with one line that says
what to install; with REQUIRE_CLUSTER=1 (CI) the same is a failure.
"""

import shutil
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.release import Release
from tests.realkafka import KafkaUnavailableError, fetch_jars
from tests.realkafka.client import unique_name
from tests.realkafka.jars import java
from tests.realkafka.waiting import wait_until
from tests.tools.build import (
    CONTROL_PLANE,
    HELM,
    KEDA_CRDS,
    PROMETHEUS_CRDS,
    ToolUnavailableError,
    build,
)
from tests.tools.helm import Helm
from tests.unavailable import give_up

UNAVAILABLE = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build here, where no test's time-out runs, and only when a test needs it."""
    chosen = [item for item in session.items if item.get_closest_marker("cluster")]
    if session.config.option.collectonly or not chosen:
        return
    if shutil.which("openssl") is None:
        session.config.stash[UNAVAILABLE] = "openssl is not on PATH (Debian: apt-get install openssl)"
        return
    try:
        for tool in (HELM, *CONTROL_PLANE, KEDA_CRDS, PROMETHEUS_CRDS):
            build(tool)
        if any(item.get_closest_marker("broker") for item in chosen):
            java()
            fetch_jars()
    except (ToolUnavailableError, KafkaUnavailableError) as error:
        session.config.stash[UNAVAILABLE] = str(error)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    reason = item.config.stash.get(UNAVAILABLE, None)
    if reason is not None and item.get_closest_marker("cluster") is not None:
        give_up("cluster", reason)


@pytest.fixture(scope="session")
def _control_plane() -> Iterator[ControlPlane]:
    with ControlPlane() as started:
        yield started


@pytest.fixture
def cluster(_control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The control plane that the run shares. What its parts said last is shown when the test failed."""
    yield _control_plane
    print(_control_plane.last_words())


@pytest.fixture(scope="session")
def _cluster_helm(_control_plane: ControlPlane) -> Iterator[Helm]:
    with Helm({"KUBECONFIG": str(_control_plane.kubeconfig)}) as found:
        yield found


@pytest.fixture
def release(cluster: ControlPlane, _cluster_helm: Helm, namespace: str) -> Release:
    """A release that is not installed yet; its namespace takes only pods of the `restricted` profile."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.api.patch("v1", "Namespace", namespace, {"metadata": {"labels": labels}})
    return Release(cluster, _cluster_helm, namespace)


@pytest.fixture
def namespace(cluster: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own; deleted with the test."""
    name = unique_name(request.node.name).lower().replace("_", "-").replace(".", "-")[-50:].strip("-")
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    # Pods are refused until the controller manager has made the account they run as.
    account = partial(cluster.api.get, "v1", "ServiceAccount", "default", namespace=name)
    wait_until(lambda: account() is not None, 30, "the namespace's service account")
    try:
        yield name
    finally:
        cluster.api.delete("v1", "Namespace", name)


@pytest.fixture
def secret(cluster: ControlPlane, namespace: str) -> Callable[..., None]:
    """Makes a Secret in the test's namespace: secret(name, password="..")."""

    def make(name: str, **texts: str) -> None:
        made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": texts}
        cluster.api.create(made, namespace=namespace)

    return make
