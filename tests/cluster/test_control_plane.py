"""The control plane itself: that it plays a rollout as a cluster would, traps included."""

from typing import Any

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.watching import watched
from tests.realkafka.waiting import wait_until

REPLICAS = 3
STARTS_IN = 0.5
DRAINS_IN = 4


def deployment(version: str, **spec: Any) -> dict[str, Any]:
    labels = {"app": "shop"}
    annotations = {"test.streamloop/starts-in": f"{STARTS_IN}s", "test.streamloop/drains-in": f"{DRAINS_IN}s"}
    container = {"name": "shop", "image": f"shop:{version}"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "shop"},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 2 * DRAINS_IN},
            },
            **spec,
        },
    }


def rolled_out(cluster: ControlPlane, namespace: str) -> bool:
    found = cluster.api.get("apps/v1", "Deployment", "shop", namespace=namespace)
    assert found is not None
    status = found.get("status", {})
    return (
        status.get("observedGeneration") == found["metadata"]["generation"]
        and status.get("updatedReplicas") == status.get("availableReplicas") == REPLICAS
        and len(cluster.api.all("v1", "Pod", namespace=namespace)) == REPLICAS
    )


def roll(cluster: ControlPlane, namespace: str, **spec: Any) -> Any:
    """Roll a Deployment from one image to the next; the watch of it."""
    cluster.api.create(deployment("1", **spec), namespace=namespace)
    wait_until(lambda: rolled_out(cluster, namespace), 60, "the first version")
    with watched(cluster.api, namespace) as watch:
        change = {"spec": {"template": deployment("2")["spec"]["template"]}}
        cluster.api.patch("apps/v1", "Deployment", "shop", change, namespace=namespace)
        wait_until(lambda: rolled_out(cluster, namespace), 90, watch.told)
    return watch


def test_a_rollout_with_the_settings_of_kubernetes_drains_all_consumers_at_once(
    cluster: ControlPlane, namespace: str
) -> None:
    """FACTS 39: pods that drain do not count as unavailable. This is what the chart has to prevent."""
    watch = roll(cluster, namespace)
    assert watch.most(lambda moment: len(moment.leaving)) == REPLICAS, watch.told()


def test_a_rollout_that_waits_for_the_drain_has_never_more_than_one_pod_away(
    cluster: ControlPlane, namespace: str
) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    watch = roll(cluster, namespace, strategy=strategy, minReadySeconds=DRAINS_IN + 1)
    assert watch.most(lambda moment: moment.out(REPLICAS)) == 1, watch.told()


def test_a_field_that_does_not_exist_is_refused_and_a_check_stores_nothing(
    cluster: ControlPlane, namespace: str
) -> None:
    good = deployment("1")
    cluster.api.create(good, namespace=namespace, check_only=True)
    assert cluster.api.get("apps/v1", "Deployment", "shop", namespace=namespace) is None
    with pytest.raises(ApiError, match=r'unknown field "spec\.replica"'):
        cluster.api.create(deployment("1", replica=2), namespace=namespace, check_only=True)


def test_a_job_completes_and_one_with_wrong_credentials_fails(cluster: ControlPlane, namespace: str) -> None:
    def job(name: str, secret: str) -> dict[str, Any]:
        source = {"secretRef": {"name": secret}}
        container = {"name": "once", "image": "shop:1", "envFrom": [source]}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        spec = {"backoffLimit": 0, "template": template}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}

    def finished(name: str) -> set[str]:
        found = cluster.api.get("batch/v1", "Job", name, namespace=namespace)
        assert found is not None
        return {c["type"] for c in found.get("status", {}).get("conditions", ()) if c["status"] == "True"}

    cluster.api.create(job("good", "credentials"), namespace=namespace)
    cluster.api.create(job("bad", "wrong-credentials"), namespace=namespace)
    wait_until(lambda: "Complete" in finished("good"), 60, "the good Job")
    wait_until(lambda: "Failed" in finished("bad"), 60, "the bad Job")


def test_custom_resources_of_keda_and_of_the_prometheus_operator_are_validated(
    cluster: ControlPlane, namespace: str
) -> None:
    made: dict[str, Any] = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "shop"},
        "spec": {"scaleTargetRef": {"name": "shop"}, "triggers": [{"type": "kafka", "metadata": {}}]},
    }
    cluster.api.create(made, namespace=namespace, check_only=True)
    del made["spec"]["triggers"]
    with pytest.raises(ApiError, match=r"spec\.triggers: Required value"):
        cluster.api.create(made, namespace=namespace, check_only=True)
    assert ("monitoring.coreos.com/v1", "PodMonitor") in set(cluster.api.namespaced_kinds())
