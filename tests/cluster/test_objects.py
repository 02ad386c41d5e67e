"""Every object that the chart can make is one that the API server takes, and names only what is there."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.cluster.api import Api, Object
from tests.cluster.release import CHART, Release
from tests.cluster.test_release import QUICK, values
from tests.realkafka.waiting import wait_until

VALUES = sorted([*(CHART / "ci").glob("*-values.yaml"), *(CHART / "sizes").glob("*.yaml")])


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_the_api_server_takes_every_object_of_these_values(release: Release, path: Any) -> None:
    """Strictly: a field that does not exist is an error; KEDA's and the Prometheus operator's kinds too."""
    text = release.template("-f", str(path))
    objects = [each for each in yaml.safe_load_all(text) if each]
    assert objects
    wrong = []
    for made in objects:
        try:
            release.cluster.api.create(made, namespace=release.namespace, check_only=True)
        except Exception as error:
            wrong.append(f"{made['kind']} {made['metadata']['name']}: {error}")
    assert not wrong, "\n".join(wrong)


def test_there_are_values_for_every_kind_that_is_validated(release: Release) -> None:
    kinds = {
        each["kind"]
        for path in VALUES
        for each in yaml.safe_load_all(release.template("-f", str(path)))
        if each
    }
    assert kinds >= {
        *("Deployment", "StatefulSet", "Job", "CronJob", "ConfigMap", "ServiceAccount", "NetworkPolicy"),
        *("PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject", "PodMonitor", "PrometheusRule"),
    }


def references(pod_spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(kind, name) of everything that a pod can't start without."""
    yield "ServiceAccount", pod_spec.get("serviceAccountName", "default")
    for each in pod_spec.get("imagePullSecrets", ()):
        yield "Secret", each["name"]
    yield from _named(pod_spec)


def _named(found: Any) -> Iterator[tuple[str, str]]:
    if isinstance(found, list):
        for each in found:
            yield from _named(each)
    if not isinstance(found, dict):
        return
    for field, inner in found.items():
        if isinstance(inner, dict) and not inner.get("optional"):
            name = str(inner.get("secretName") or inner.get("claimName") or inner.get("name"))
            if field in ("configMap", "configMapRef", "configMapKeyRef"):
                yield "ConfigMap", name
            elif field in ("secret", "secretRef", "secretKeyRef"):
                yield "Secret", name
            elif field == "persistentVolumeClaim":
                yield "PersistentVolumeClaim", name
        yield from _named(inner)


def missing(api: Api, namespace: str, pod: Object) -> list[str]:
    """What the pod names and is not there."""
    return [
        f"{kind} {name} of pod {pod['metadata']['name']}"
        for kind, name in references(pod["spec"])
        if api.get("v1", kind, name, namespace=namespace) is None
    ]


def test_every_reference_of_every_hook_exists_before_the_hook_runs(release: Release) -> None:
    """Hooks run before the release's objects exist: looked at in the moment in which a hook's pod appears."""
    job = {"topicsJob": {"enabled": True, "withLoop": True}}
    topics = {"topics": [{"name": "orders", "create": {"partitions": 3}}]}
    api, namespace = release.cluster.api, release.namespace
    seen: dict[str, list[str]] = {}

    def of_a_hook(pod: Object) -> bool:
        name = pod["metadata"]["name"]
        if any(owner["kind"] == "Job" for owner in pod["metadata"].get("ownerReferences", ())):
            seen.setdefault(name, missing(api, namespace, pod))
        return False

    with release.watched(of_a_hook):
        release.install(values(QUICK, job, topics))
        release.upgrade(values(QUICK, job, topics, {"settings": {"log_level": "DEBUG"}}))
        release.test()
        wait_until(lambda: len(seen) >= 3, 30, lambda: f"the pods of three hooks; seen: {seen}")
    assert {name: lack for name, lack in seen.items() if lack} == {}
    for pod in release.pods():
        assert missing(api, namespace, pod) == []
