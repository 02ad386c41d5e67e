"""The fixtures `jaeger`, `prometheus`, `promtool`, `compose`, `grafana`, `helm`; what if there is no Go.

A test that asks for one of them bears the marker `tools`; one that starts programs by itself names them in
it: @pytest.mark.tools("jaeger"). Where Go is missing it is skipped, with one line that says what to install;
with REQUIRE_TOOLS=1 (CI) the same is a failure. Loaded by tests/conftest.py.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.tools.build import (
    COMPOSE,
    GRAFANA,
    HELM,
    JAEGER,
    PROMETHEUS,
    PROMTOOL,
    Tool,
    ToolUnavailableError,
    build,
)
from tests.tools.compose import Compose
from tests.tools.grafana import Grafana
from tests.tools.helm import Helm
from tests.tools.jaeger import Jaeger
from tests.tools.prometheus import Prometheus
from tests.tools.promtool import Promtool
from tests.unavailable import give_up

NEEDED: dict[str, Tool] = {
    "jaeger": JAEGER,
    "prometheus": PROMETHEUS,
    "promtool": PROMTOOL,
    "compose": COMPOSE,
    "grafana": GRAFANA,
    "helm": HELM,
}
"""The program behind each fixture."""
UNAVAILABLE = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "tools(*names): needs Jaeger, Prometheus, promtool, Helm or a reader of files, built with Go; "
        "skipped with the reason when Go is missing, required in CI",
    )


def _tools(item: pytest.Item) -> dict[str, Tool]:
    named = {name for mark in item.iter_markers("tools") for name in mark.args}
    named.update(getattr(item, "fixturenames", ()))
    return {name: tool for name, tool in NEEDED.items() if name in named}


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _tools(item):
            item.add_marker("tools")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build here, where no test's time-out runs, and only what a chosen test needs."""
    if session.config.option.collectonly:
        return
    missing: dict[str, str] = {}
    for name, tool in {name: tool for item in session.items for name, tool in _tools(item).items()}.items():
        try:
            build(tool)
        except ToolUnavailableError as error:
            missing[name] = str(error)
    session.config.stash[UNAVAILABLE] = missing


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = item.config.stash.get(UNAVAILABLE, {})
    for name in _tools(item):
        if name in missing:
            give_up("tools", missing[name])


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    """Checks configuration, rules and metrics."""
    return Promtool()


@pytest.fixture(scope="session")
def compose() -> Compose:
    """Reads compose files."""
    return Compose()


@pytest.fixture(scope="session")
def grafana() -> Grafana:
    """Reads dashboards."""
    return Grafana()


@pytest.fixture(scope="session")
def helm() -> Iterator[Helm]:
    """Helm without a cluster: templates and lint."""
    with Helm() as found:
        yield found


@pytest.fixture(scope="session")
def _jaegers() -> Iterator[list[Jaeger]]:
    started: list[Jaeger] = []
    try:
        yield started
    finally:
        for each in started:
            each.stop()


@pytest.fixture
def jaeger(_jaegers: list[Jaeger]) -> Jaeger:
    """A Jaeger that the run shares; a test that killed it leaves a new one to the next. Its traces stay."""
    if not _jaegers or not _jaegers[-1].running:
        _jaegers.append(Jaeger())
        _jaegers[-1].start()
    return _jaegers[-1]


@pytest.fixture
def prometheus() -> Iterator[Callable[..., Prometheus]]:
    """Starts a Prometheus: prometheus(targets, scrape_seconds=1). Ended with the test."""
    started: list[Prometheus] = []

    def start(*targets: str, scrape_seconds: int | None = 1) -> Prometheus:
        started.append(Prometheus(targets, scrape_seconds=scrape_seconds))
        started[-1].start()
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            each.stop()
