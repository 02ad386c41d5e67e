"""The chart as a part of another one: twice under two names, with what a parent may say, or not at all."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.chart.rendered import CHART, Object

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.tools.helm import Helm

LOOPS: dict[str, Any] = {
    "billing": {"settings": {"brokers": ["kafka:9092"], "group": "billing"}, "enabled": True},
    "shipping": {
        "settings": {"brokers": ["kafka:9092"], "group": "shipping", "high_watermark_messages": 1_000_000},
        "kind": "StatefulSet",
        "enabled": True,
    },
    "global": {
        "imageRegistry": "registry.example.com",
        "imagePullSecrets": [{"name": "pull"}],
        "of the parent's": {"anything": 1},
    },
}


@pytest.fixture
def parent(helm: Helm, tmp_path: Path) -> Callable[[dict[str, Any]], list[Object]]:
    """Renders a chart that has this one twice, with values for it."""
    folder = tmp_path / "shop"
    shutil.copytree(CHART, folder / "charts" / "streamloop")
    (folder / "templates").mkdir()
    dependency = {"name": "streamloop", "version": "*"}
    chart = {
        "apiVersion": "v2",
        "name": "shop",
        "version": "1.0.0",
        "dependencies": [
            {**dependency, "alias": alias, "condition": f"{alias}.enabled"}
            for alias in ("billing", "shipping")
        ],
    }
    (folder / "Chart.yaml").write_text(yaml.safe_dump(chart), encoding="utf-8")

    def render(values: dict[str, Any]) -> list[Object]:
        return helm.template(folder, values=values, release="prod")

    return render


def test_two_loops_in_one_release_do_not_meet(parent: Callable[[dict[str, Any]], list[Object]]) -> None:
    objects = parent(LOOPS)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))
    found = {
        each["metadata"]["name"]: each for each in objects if each["kind"] in ("Deployment", "StatefulSet")
    }
    assert set(found) == {"prod-billing", "prod-shipping"}
    selectors = [str(each["spec"]["selector"]) for each in found.values()]
    assert len(set(selectors)) == 2
    [config] = [
        each["data"]["streamloop.yaml"]
        for each in objects
        if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", "prod-shipping")
    ]
    assert yaml.safe_load(config)["high_watermark_messages"] == 1_000_000


def test_what_is_global_counts_for_every_pod(parent: Callable[[dict[str, Any]], list[Object]]) -> None:
    for each in parent(LOOPS):
        if each["kind"] in ("Deployment", "StatefulSet", "Job"):
            spec = each["spec"]["template"]["spec"]
            assert spec["containers"][0]["image"] == "registry.example.com/streamloop:0.1.0"
            assert spec["imagePullSecrets"] == [{"name": "pull"}]


def test_a_condition_of_the_parent_leaves_it_out(parent: Callable[[dict[str, Any]], list[Object]]) -> None:
    objects = parent({**LOOPS, "billing": {"enabled": False}})
    assert {each["metadata"]["labels"]["app.kubernetes.io/name"] for each in objects} <= {
        *("shipping", "shipping-test"),
    }
