"""The broker fixtures for this folder, and its marks: `broker`, and `replay`, so that they are run once."""

from pathlib import Path

import pytest

from tests.broker.conftest import (
    _clusters,
    _healed_clusters,
    group,
    kafka,
    kafka3,
    members,
    pytest_collection_finish,
    pytest_runtest_setup,
    topic,
)

__all__ = [
    "_clusters",
    "_healed_clusters",
    "group",
    "kafka",
    "kafka3",
    "members",
    "pytest_collection_finish",
    "pytest_runtest_setup",
    "topic",
]

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("broker")
            item.add_marker("replay")
