"""What happened to pods, change by change: a rollout is judged by every moment of it, not by how it ends.

What calls it: the fixture tests and the tests of the chart. It only looks.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.cluster.api import Api, Object


@dataclass(frozen=True, slots=True)
class Moment:
    """The pods after one change: names of those that are there, by what they are good for.

    at: seconds on the monotonic clock. A pod that is being deleted counts as that only, ready or not.
    """

    at: float
    serving: frozenset[str]
    starting: frozenset[str]
    leaving: frozenset[str]

    def out(self, replicas: int) -> int:
        """How many of the replicas are away: being deleted or not ready, a pod that leaves and the one that
        takes its place counted as the one replica that they are.

        A ReplicaSet makes the replacement when the deletion begins, so both are there for a while.
        """
        return max(len(self.leaving), replicas - len(self.serving))


def is_ready(pod: Object) -> bool:
    """Whether the pod is ready and nobody deletes it."""
    conditions = pod.get("status", {}).get("conditions", ())
    deleted = "deletionTimestamp" in pod["metadata"]
    return not deleted and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


class PodWatch:
    """The moments of the pods of one namespace, from its start on."""

    def __init__(self, api: Api, namespace: str, wanted: Callable[[Object], bool]) -> None:
        self._api = api
        self._namespace = namespace
        self._wanted = wanted
        self._pods: dict[str, Object] = {}
        self._moments: list[Moment] = []
        self._listed = threading.Event()
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name=f"pods of {namespace}", daemon=True)

    @property
    def moments(self) -> list[Moment]:
        """So far. Raises what ended the watch, should it have failed: a watch with a hole proves nothing."""
        if self._failure is not None:
            raise RuntimeError("the watch of the pods failed") from self._failure
        return list(self._moments)

    def most(self, count: Callable[[Moment], int]) -> int:
        """The largest count of any moment."""
        return max(map(count, self.moments), default=0)

    def told(self) -> str:
        """The moments as text, for a failure."""
        moments = self.moments
        return "\n".join(
            f"{moment.at - moments[0].at:7.2f} s serving {sorted(moment.serving)} "
            f"starting {sorted(moment.starting)} leaving {sorted(moment.leaving)}"
            for moment in moments
        )

    def start(self) -> None:
        """Begin. Returns once it knows the pods that are there: no change after that is missed."""
        self._thread.start()
        assert self._listed.wait(30), "the watch of the pods does not begin"

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), "the watch of the pods does not end"

    def _watch(self) -> None:
        try:
            stopped = self._stopped.is_set
            self._api.watch("v1", "Pod", self._there, self._changed, stopped, namespace=self._namespace)
        except BaseException as error:
            self._failure = error

    def _there(self, pods: Sequence[Object]) -> None:
        self._pods = {pod["metadata"]["name"]: pod for pod in pods if self._wanted(pod)}
        self._look()
        self._listed.set()

    def _changed(self, event: str, pod: Object) -> None:
        if not self._wanted(pod):
            return
        name = pod["metadata"]["name"]
        if event == "DELETED":
            self._pods.pop(name, None)
        else:
            self._pods[name] = pod
        self._look()

    def _look(self) -> None:
        pods = self._pods.items()
        leaving = frozenset(name for name, pod in pods if "deletionTimestamp" in pod["metadata"])
        serving = frozenset(name for name, pod in pods if is_ready(pod))
        self._moments.append(
            Moment(time.monotonic(), serving, frozenset(self._pods) - serving - leaving, leaving)
        )


@contextmanager
def watched(api: Api, namespace: str, wanted: Callable[[Object], bool] | None = None) -> Iterator[PodWatch]:
    """Watch while the block runs. wanted: which pods count (default: all that no Job made)."""
    watch = PodWatch(api, namespace, wanted or _no_job)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


def _no_job(pod: Object) -> bool:
    return all(owner["kind"] != "Job" for owner in pod["metadata"].get("ownerReferences", ()))
