"""The life of a release: installed, rolled to the next version and back, scaled, evicted, removed."""

import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamloop import shutdown
from streamloop.settings import Settings
from tests.cluster.api import ApiError
from tests.cluster.release import CHART, Release
from tests.realkafka.waiting import wait_until
from tests.tools.helm import HelmError

REPLICAS = 3
BASE: dict[str, Any] = {
    "app": "shop:loop",
    "replicas": REPLICAS,
    "settings": {"brokers": ["kafka:9092"], "group": "billing", "drain_timeout": "1s"},
}


def values(*more: dict[str, Any]) -> dict[str, Any]:
    """The base values with more merged into them."""
    found = deepcopy(BASE)
    for each in more:
        merge(found, each)
    return found


def merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = deepcopy(value)


def pace(drains_in: float, starts_in: float = 0.5) -> dict[str, Any]:
    """How long the pods take, for the stages of KWOK."""
    annotations = {
        "test.streamloop/starts-in": f"{starts_in}s",
        "test.streamloop/drains-in": f"{drains_in}s",
    }
    return {"podAnnotations": annotations}


def logged_in_by(secret: str) -> dict[str, Any]:
    """Values of members that log in with the password of this Secret."""
    settings = {
        "security_protocol": "sasl_plaintext",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "shop",
    }
    return {"settings": settings, "auth": {"sasl": {"existingSecret": secret}}}


def longest_drain(release: Release, given: dict[str, Any]) -> int:
    """Seconds that a pod may take until it has left the group, when everything takes as long as it may."""
    settings = Settings.load(given["settings"], env={}).settings
    [made] = [each for each in release.rendered(given) if each["kind"] == "Deployment"]
    left = math.ceil(shutdown.longest(settings).left)
    assert made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > left
    return left


QUICK = {"minReadySeconds": 2, **pace(1.5)}
"""For tests of something else than the figures that the chart computes."""


EVERYTHING: dict[str, Any] = {
    "settings": {"control_address": "0.0.0.0:9465"},
    "podMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
    "topicsJob": {"enabled": True},
    "topics": [{"name": "orders", "create": {"partitions": 3}}],
    "controlService": {"enabled": True},
}
"""So that whatever the chart can make has to be upgraded, and removed."""


@pytest.mark.timeout(300)
def test_an_upgrade_takes_one_pod_at_a_time_though_each_drains_for_as_long_as_it_may(
    release: Release,
) -> None:
    """With the figures that the chart computes. FACTS 39: without them all pods drain at once."""
    given = values(pace(longest_drain(release, BASE)))
    release.install(given)
    release.wait_rolled_out(REPLICAS)
    old = release.serving()
    with release.watched() as watch:
        release.upgrade(values(given, {"settings": {"log_level": "DEBUG"}}))
        release.wait_rolled_out(REPLICAS)
    assert watch.most(lambda moment: moment.out(REPLICAS)) == 1, watch.told()
    assert release.serving().isdisjoint(old)


def test_a_release_is_installed_tested_upgraded_rolled_back_and_removed_without_a_trace(
    release: Release,
) -> None:
    given = values(QUICK, EVERYTHING)
    release.install(given)
    release.test()
    release.upgrade(values(given, {"settings": {"log_level": "DEBUG"}}))
    release.wait_rolled_out(REPLICAS)
    upgraded = release.serving()
    with release.watched() as watch:
        release.rollback()
        release.wait_rolled_out(REPLICAS)
    assert watch.most(lambda moment: moment.out(REPLICAS)) == 1, watch.told()
    assert release.serving().isdisjoint(upgraded)
    [config] = [e for e in release.objects() if e["kind"] == "ConfigMap" and "streamloop.yaml" in e["data"]]
    found = release.get("v1", "ConfigMap", config["metadata"]["name"])
    assert found is not None
    assert "DEBUG" not in found["data"]["streamloop.yaml"]

    release.uninstall()
    wait_until(lambda: not release.left(), 60, lambda: f"nothing to be left, but there is {release.left()}")


def test_a_rollout_with_wrong_credentials_stops_at_the_first_pod_and_the_old_ones_stay(
    release: Release, secret: Callable[..., None]
) -> None:
    secret("credentials", password="right")
    secret("wrong-credentials", password="wrong")

    release.install(values(QUICK, logged_in_by("credentials")))
    release.wait_rolled_out(REPLICAS)
    old = release.serving()
    with release.watched() as watch:
        with pytest.raises(HelmError):
            release.upgrade(values(QUICK, logged_in_by("wrong-credentials")), "--timeout", "12s")
        assert len(release.serving() & old) == REPLICAS - 1
        assert len(release.pods()) == REPLICAS, "more than one new pod was started"
        release.rollback()
        release.wait_rolled_out(REPLICAS)
    assert watch.most(lambda moment: moment.out(REPLICAS)) == 1, watch.told()
    assert len(release.serving() & old) == REPLICAS - 1, "an old pod was replaced on the way back"


def test_an_upgrade_whose_topics_can_not_be_made_touches_no_pod(
    release: Release, secret: Callable[..., None]
) -> None:
    """The hook comes first, and with it what is wrong with the credentials."""
    secret("credentials", password="right")
    secret("wrong-credentials", password="wrong")
    hook = {
        "topicsJob": {"enabled": True, "backoffLimit": 0},
        "topics": [{"name": "orders", "create": {"partitions": 3}}],
    }
    release.install(values(QUICK, hook, logged_in_by("credentials")))
    release.wait_rolled_out(REPLICAS)
    old = release.serving()
    with release.watched() as watch, pytest.raises(HelmError, match="topics"):
        release.upgrade(values(QUICK, hook, logged_in_by("wrong-credentials")), "--timeout", "60s")
    assert {moment.serving for moment in watch.moments} == {frozenset(old)}, watch.told()
    assert watch.most(lambda moment: len(moment.starting) + len(moment.leaving)) == 0, watch.told()


def test_an_eviction_respects_the_budget_until_the_replacement_is_ready(release: Release) -> None:
    release.install(values(QUICK))
    first, second, _ = sorted(release.serving())
    release.cluster.api.evict(first, namespace=release.namespace)
    with pytest.raises(ApiError, match="disruption budget") as refused:
        release.cluster.api.evict(second, namespace=release.namespace)
    assert refused.value.status == 429
    wait_until(lambda: len(release.serving()) == REPLICAS, 60, "the replacement")

    def evicted() -> bool:
        try:
            release.cluster.api.evict(second, namespace=release.namespace)
        except ApiError as error:
            if error.status != 429:
                raise
            return False
        return True

    wait_until(evicted, 60, "the budget to allow the next one")
    wait_until(lambda: len(release.serving()) == REPLICAS, 60, "the replacement")


def test_pods_that_never_got_ready_do_not_hold_up_the_drain_of_their_node(
    release: Release, secret: Callable[..., None]
) -> None:
    secret("wrong-credentials", password="wrong")
    with pytest.raises(HelmError):
        release.install(values(QUICK, logged_in_by("wrong-credentials")), "--timeout", "3s")
    wait_until(lambda: len(release.pods()) == REPLICAS, 30, "the pods")
    assert release.serving() == set()
    for pod in release.pods():
        release.cluster.api.evict(pod["metadata"]["name"], namespace=release.namespace)


def test_a_stateful_set_starts_its_pods_together_and_rolls_one_at_a_time(release: Release) -> None:
    stateful = values(QUICK, {"kind": "StatefulSet"}, pace(1.5, starts_in=1))
    with release.watched() as watch:
        release.install(stateful)
        release.wait_rolled_out(REPLICAS)
    assert watch.most(lambda moment: len(moment.starting)) == REPLICAS, watch.told()
    names = release.serving()
    with release.watched() as watch:
        release.upgrade(values(stateful, {"settings": {"log_level": "DEBUG"}}))
        release.wait_rolled_out(REPLICAS)
    # Here a pod starts only when the old one of its name is gone.
    assert watch.most(lambda moment: len(moment.starting) + len(moment.leaving)) == 1, watch.told()
    assert release.serving() == names


@pytest.mark.parametrize("scaling", ["hpa", "keda"])
def test_an_upgrade_leaves_the_replicas_to_what_scales_them(release: Release, scaling: str) -> None:
    scaled = values(
        QUICK,
        {
            "autoscaling": {"type": scaling, "minReplicas": 2, "maxReplicas": 6},
            "topics": [{"name": "orders"}],
        },
    )
    release.install(scaled)
    name = release.workload()["metadata"]["name"]
    change = {"spec": {"replicas": 4}}
    release.cluster.api.patch("apps/v1", "Deployment", name, change, namespace=release.namespace)
    wait_until(lambda: len(release.serving()) == 4, 60, "four members")
    release.upgrade(values(scaled, {"commonLabels": {"team": "payments"}}))
    assert release.workload()["spec"]["replicas"] == 4


@pytest.mark.parametrize("kind", ["Job", "CronJob"])
def test_a_bounded_run_is_a_job_that_completes(release: Release, kind: str) -> None:
    release.install(values({"kind": kind}))
    [made] = [each for each in release.objects() if each["kind"] == kind]
    name = made["metadata"]["name"]
    if kind == "CronJob":
        # What its controller does when it is due.
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": made["spec"]["jobTemplate"]["spec"],
        }
        release.cluster.api.create(job, namespace=release.namespace)

    def completed() -> bool:
        found = release.get("batch/v1", "Job", name)
        conditions = found.get("status", {}).get("conditions", ()) if found else ()
        return any(c["type"] == "Complete" and c["status"] == "True" for c in conditions)

    wait_until(completed, 60, "the Job")
    [pod] = release.cluster.api.all("v1", "Pod", namespace=release.namespace)
    assert "--until-end" in pod["spec"]["containers"][0]["args"]


def test_as_a_subchart_it_takes_its_values_and_those_that_are_global(
    release: Release, tmp_path: Path
) -> None:
    parent = tmp_path / "shop"
    (parent / "charts").mkdir(parents=True)
    (parent / "charts" / "streamloop").symlink_to(CHART)
    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["version"]
    dependency = {"name": "streamloop", "version": version, "condition": "streamloop.enabled"}
    chart = {"apiVersion": "v2", "name": "shop", "version": "1.0.0", "dependencies": [dependency]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(chart), encoding="utf-8")
    given = {
        "streamloop": {**values(QUICK), "enabled": True},
        "global": {"imageRegistry": "registry.example", "of-the-parent": {"any": "thing"}},
    }
    release.install(given, chart=parent)
    release.wait_rolled_out(REPLICAS)
    images = {pod["spec"]["containers"][0]["image"] for pod in release.pods()}
    assert all(image.startswith("registry.example/") for image in images)
    release.upgrade({**given, "streamloop": {**given["streamloop"], "enabled": False}}, chart=parent)
    assert release.objects() == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"replicas": "three"}, "replicas"),
        ({"replica": 3}, "replica"),
        ({"settings": {"concurrency": 0}}, "concurrency"),
        ({"settings": {"concurency": 5}}, "concurency"),
        ({"settings": {"consumers": {"orders": {"ordering": "random"}}}}, "ordering"),
        ({"settings": {"drain_timeout": "soon"}}, "drain_timeout"),
        ({"terminationGracePeriodSeconds": 1}, "terminationGracePeriodSeconds is 1 but"),
    ],
    ids=str,
)
def test_a_bad_value_is_refused_before_anything_is_made_with_its_name(
    release: Release, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(HelmError) as refused:
        release.install(values(wrong))
    assert said in str(refused.value)
    assert release.left() == []
