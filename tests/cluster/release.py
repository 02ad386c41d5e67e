"""A release of the chart on the control plane: installed, upgraded, rolled back and removed by Helm itself.

What calls it: the tests of the chart. It deletes what it installed.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.watching import PodWatch, is_ready, watched
from tests.realkafka.members import ROOT
from tests.realkafka.waiting import wait_until
from tests.tools.helm import Helm

CHART = ROOT / "helm" / "streamloop"
ROLL_SECONDS = 180.0


class Release:
    """One release in one namespace."""

    def __init__(self, cluster: ControlPlane, helm: Helm, namespace: str, name: str = "billing") -> None:
        self.name = name
        self.namespace = namespace
        self.cluster = cluster
        self._helm = helm

    def install(self, values: Mapping[str, Any], *options: str, chart: Path = CHART) -> str:
        """helm install --wait. HelmError when it is refused or does not come up in its time."""
        return self._apply("install", values, options, chart)

    def upgrade(self, values: Mapping[str, Any], *options: str, chart: Path = CHART) -> str:
        """helm upgrade --wait, with these values alone."""
        return self._apply("upgrade", values, options, chart)

    def template(self, *options: str) -> str:
        """helm template: hooks included, nothing is installed."""
        return self._run("template", self.name, str(CHART), *options)

    def rendered(self, values: Mapping[str, Any]) -> list[Object]:
        """What helm template makes of these values."""
        return self._helm.template(
            CHART, "--namespace", self.namespace, release=self.name, values=dict(values)
        )

    def rollback(self, *options: str) -> str:
        """helm rollback --wait, to the release before."""
        return self._run("rollback", self.name, "--wait", *options)

    def uninstall(self) -> str:
        """helm uninstall --wait."""
        return self._run("uninstall", self.name, "--wait")

    def test(self) -> str:
        """helm test."""
        return self._run("test", self.name)

    def objects(self) -> list[Object]:
        """What Helm says it has installed (without hooks)."""
        text = self._run("get", "manifest", self.name)
        return [each for each in yaml.safe_load_all(text) if each]

    def workload(self) -> Object:
        """The Deployment or StatefulSet as it is on the API server."""
        [made] = [each for each in self.objects() if each["kind"] in ("Deployment", "StatefulSet")]
        found = self.get("apps/v1", made["kind"], made["metadata"]["name"])
        assert found is not None
        return found

    def get(self, version: str, kind: str, name: str) -> Object | None:
        """An object of the release's namespace."""
        return self.cluster.api.get(version, kind, name, namespace=self.namespace)

    def pods(self) -> list[Object]:
        """The members' pods, those of Jobs left out."""
        return [
            pod
            for pod in self.cluster.api.all("v1", "Pod", namespace=self.namespace)
            if all(owner["kind"] != "Job" for owner in pod["metadata"].get("ownerReferences", ()))
        ]

    def serving(self) -> set[str]:
        """Names of the pods that are ready and stay."""
        return {pod["metadata"]["name"] for pod in self.pods() if is_ready(pod)}

    def watched(self, wanted: Callable[[Object], bool] | None = None) -> AbstractContextManager[PodWatch]:
        """Watch its pods while the block runs."""
        return watched(self.cluster.api, self.namespace, wanted)

    def wait_rolled_out(self, replicas: int) -> None:
        """Until all pods are of the last version and available, and no old one is left."""

        def done() -> bool:
            found = self.workload()
            status = found.get("status", {})
            return (
                status.get("observedGeneration") == found["metadata"]["generation"]
                and status.get("updatedReplicas", 0) == replicas
                and status.get("availableReplicas", 0) == replicas
                and len(self.pods()) == replicas
            )

        wait_until(done, ROLL_SECONDS, lambda: f"the roll-out: {self.workload().get('status')}")

    def left(self) -> list[str]:
        """What is in the namespace that Kubernetes did not put there by itself."""
        usual = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
        found = []
        for version, kind in self.cluster.api.namespaced_kinds():
            if kind == "Event":
                continue
            listed = self.cluster.api.all(version, kind, namespace=self.namespace)
            found += [(kind, each["metadata"]["name"]) for each in listed]
        return sorted(" ".join(each) for each in found if each not in usual)

    def _apply(self, verb: str, values: Mapping[str, Any], options: tuple[str, ...], chart: Path) -> str:
        return self._run(
            verb, self.name, str(chart), "--wait", "-f", "-", *options, stdin=yaml.safe_dump(dict(values))
        )

    def _run(self, *arguments: str, stdin: str = "") -> str:
        return self._helm.run(*arguments, "--namespace", self.namespace, stdin=stdin)
