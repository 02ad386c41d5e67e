"""The Kubernetes API as tests need it: any kind of object, strict validation, evictions, and a watch.

What calls it: the control plane and the tests. Objects are plain dicts, as in the manifests. It speaks HTTP
by itself (urllib3), since the usual clients know no strict field validation.
"""

import json
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

Object = dict[str, Any]
ANSWER_SECONDS = 30.0


class ApiError(Exception):
    """The API server refused. `status` is HTTP's; the text is the server's own."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Api:
    """One API server. certificate: what it has to show."""

    def __init__(self, url: str, token: str, certificate: Path) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        context = ssl.create_default_context(cafile=str(certificate))
        self._pool = urllib3.PoolManager(ssl_context=context, retries=False, maxsize=4)
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}

    def healthy(self) -> bool:
        """Whether it answers that it is ready (/readyz; /healthz where that is all there is)."""
        for path in ("/readyz", "/healthz"):
            try:
                answer = self._pool.request("GET", self._url + path, headers=self._headers, timeout=5)
            except urllib3.exceptions.HTTPError:
                return False
            if answer.status != 404:
                return answer.status == 200
        return False

    def create(
        self, made: Mapping[str, Any], *, namespace: str = "default", check_only: bool = False
    ) -> Object:
        """Create the object. A field that the kind does not have is refused, as is anything invalid.

        check_only: everything but the storing (a dry run on the server).
        """
        query = {"fieldValidation": "Strict", "fieldManager": "tests"}
        if check_only:
            query["dryRun"] = "All"
        name_space = made["metadata"].get("namespace", namespace)
        path = self.path(made["apiVersion"], made["kind"], name_space)
        return self._json("POST", path, query, body=made)

    def get(self, version: str, kind: str, name: str, *, namespace: str = "default") -> Object | None:
        """The object, or None when there is none of that name."""
        try:
            return self._json("GET", f"{self.path(version, kind, namespace)}/{quote(name)}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def all(
        self,
        version: str,
        kind: str,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> list[Object]:
        """All objects of the kind; in all namespaces by default."""
        found: list[Object] = self._listed(version, kind, namespace, labels)["items"]
        return found

    def patch(
        self, version: str, kind: str, name: str, change: Mapping[str, Any], *, namespace: str = "default"
    ) -> Object:
        """Merge the change into the object."""
        return self._merge(f"{self.path(version, kind, namespace)}/{quote(name)}", change)

    def patch_status(self, version: str, kind: str, name: str, status: Mapping[str, Any]) -> Object:
        """Merge into the status of an object without a namespace."""
        return self._merge(f"{self.path(version, kind, '')}/{quote(name)}/status", {"status": status})

    def delete(self, version: str, kind: str, name: str, *, namespace: str = "default") -> None:
        """Delete the object and, in the background, what it owns. Nothing when there is none."""
        path = f"{self.path(version, kind, namespace)}/{quote(name)}"
        try:
            self._json("DELETE", path, {"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status != 404:
                raise

    def evict(self, pod: str, *, namespace: str = "default") -> None:
        """Ask to evict the pod, as a drain of its node does. ApiError 429 when a budget forbids it."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        self._json("POST", f"{self.path('v1', 'Pod', namespace)}/{quote(pod)}/eviction", body=body)

    def namespaced_kinds(self) -> Iterator[tuple[str, str]]:
        """(version, kind) of everything that can be listed in a namespace, in its preferred version."""
        groups = self._json("GET", "/apis")["groups"]
        for version in ("v1", *(group["preferredVersion"]["groupVersion"] for group in groups)):
            root = "/api/v1" if version == "v1" else f"/apis/{version}"
            for resource in self._json("GET", root)["resources"]:
                if resource["namespaced"] and "list" in resource["verbs"] and "/" not in resource["name"]:
                    yield version, resource["kind"]

    def watch(
        self,
        version: str,
        kind: str,
        on_list: Callable[[Sequence[Object]], None],
        on_event: Callable[[str, Object], None],
        stopped: Callable[[], bool],
        *,
        namespace: str,
    ) -> None:
        """Tell of the objects of the namespace: those that are there, then every change, until stopped.

        on_list gets the former, on_event ADDED, MODIFIED or DELETED and the object. It looks at `stopped`
        once a second; no change is missed, since each request goes on from the last version that was seen.
        """
        listed = self._listed(version, kind, namespace, None)
        on_list(listed["items"])
        seen = listed["metadata"]["resourceVersion"]
        url = self._url + self.path(version, kind, namespace)
        while not stopped():
            query = {
                "watch": "1",
                "resourceVersion": seen,
                "timeoutSeconds": "1",
                "allowWatchBookmarks": "true",
            }
            answer = self._pool.request(
                "GET",
                f"{url}?{urlencode(query)}",
                headers=self._headers,
                preload_content=False,
                timeout=ANSWER_SECONDS,
            )
            for line in _lines(answer):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 0), event["object"].get("message", str(line)))
                seen = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    on_event(event["type"], event["object"])

    def path(self, version: str, kind: str, namespace: str | None) -> str:
        """Where objects of the kind are: in one namespace, or (None) in all of them."""
        name, namespaced = self._kind(version, kind)
        root = "/api/v1" if version == "v1" else f"/apis/{version}"
        inside = f"/namespaces/{quote(namespace)}" if namespaced and namespace else ""
        return f"{root}{inside}/{name}"

    def _kind(self, version: str, kind: str) -> tuple[str, bool]:
        if (version, kind) not in self._kinds:
            root = "/api/v1" if version == "v1" else f"/apis/{version}"
            for resource in self._json("GET", root)["resources"]:
                if "/" not in resource["name"]:
                    found = (resource["name"], resource["namespaced"])
                    self._kinds[version, resource["kind"]] = found
        if (version, kind) not in self._kinds:
            raise ApiError(404, f"the API server has no {kind} in {version}")
        return self._kinds[version, kind]

    def _listed(
        self, version: str, kind: str, namespace: str | None, labels: Mapping[str, str] | None
    ) -> Object:
        query = {"labelSelector": ",".join(f"{k}={v}" for k, v in labels.items())} if labels else None
        return self._json("GET", self.path(version, kind, namespace), query)

    def _merge(self, path: str, change: Mapping[str, Any]) -> Object:
        kind = "application/merge-patch+json"
        return self._json("PATCH", path, {"fieldValidation": "Strict"}, body=change, content_type=kind)

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        answer = self._pool.request(
            method,
            f"{self._url}{path}?{urlencode(query)}" if query else self._url + path,
            body=None if body is None else json.dumps(body),
            headers={**self._headers, "Content-Type": content_type},
            timeout=ANSWER_SECONDS,
        )
        found: Object = json.loads(answer.data)
        if answer.status >= 400:
            raise ApiError(answer.status, found.get("message", str(found)))
        return found


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for read in answer.stream(65_536):
        *lines, rest = (rest + read).split(b"\n")
        yield from lines
    answer.release_conn()
