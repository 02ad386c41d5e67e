"""What docs/deploy.md says about `kubectl scale`: it is in the way of Helm, and the way to autoscaling."""

import pytest

from tests.cluster.release import Release
from tests.cluster.test_release import QUICK, REPLICAS, values
from tests.tools.helm import HelmError

NAME = "billing-streamloop"


def scale(release: Release, replicas: int) -> None:
    """As kubectl scale does: by the subresource."""
    release.cluster.api.patch(
        *("apps/v1", "Deployment", f"{NAME}/scale", {"spec": {"replicas": replicas}}),
        namespace=release.namespace,
    )


def replicas(release: Release) -> int:
    found = release.get("apps/v1", "Deployment", NAME)
    assert found is not None
    count: int = found["spec"]["replicas"]
    return count


def test_an_upgrade_after_scaling_by_hand_stops_with_a_conflict_unless_it_is_forced(release: Release) -> None:
    release.install(values(QUICK))
    scale(release, REPLICAS + 1)
    with pytest.raises(HelmError, match=r"conflict.*\.spec\.replicas"):
        release.upgrade(values(QUICK))
    assert replicas(release) == REPLICAS + 1
    release.upgrade(values(QUICK), "--force-conflicts")
    assert replicas(release) == REPLICAS


def test_replicas_that_were_scaled_by_hand_stay_when_autoscaling_is_switched_on(release: Release) -> None:
    """And fall to 1 otherwise, since nobody states them any more."""
    scaled = values(QUICK, {"autoscaling": {"type": "hpa", "minReplicas": 2}})
    release.install(values(QUICK))
    scale(release, REPLICAS + 1)
    release.upgrade(scaled)
    assert replicas(release) == REPLICAS + 1
    release.upgrade(values(QUICK), "--force-conflicts")
    assert replicas(release) == REPLICAS
    release.upgrade(scaled)
    assert replicas(release) == 1
