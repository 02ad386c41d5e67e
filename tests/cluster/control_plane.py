"""A Kubernetes control plane of processes: etcd, API server, controller manager, scheduler, KWOK's nodes.

What calls it: the fixture `cluster`. All of it listens on free ports of 127.0.0.1, keeps its data in
temporary folders, and is ended by its own process ids. It runs no container: KWOK plays the pods
(stages.yaml).
"""

import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.cluster.api import Api
from tests.realkafka.node import HOST
from tests.realkafka.waiting import wait_until
from tests.tools.build import (
    ETCD,
    KEDA_CRDS,
    KUBE_APISERVER,
    KUBE_CONTROLLER_MANAGER,
    KUBE_SCHEDULER,
    KWOK,
    PROMETHEUS_CRDS,
    Files,
    build,
)
from tests.tools.program import Program, address, request

TOKEN = "admin-of-the-tests"
NODES = 3
"""Three, so that spreading over nodes has something to do."""


class Etcd(Program):
    """The API server's store."""

    tool = ETCD
    port_count = 2

    @property
    def url(self) -> str:
        return f"http://{address(self.ports[0])}"

    def arguments(self, folder: Path) -> Sequence[str]:
        peer = f"http://{address(self.ports[1])}"
        return [
            f"--data-dir={folder / 'data'}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # it has nothing that is worth a disk's time
            "--log-level=warn",
        ]

    def ready(self) -> bool:
        answer = request(f"{self.url}/readyz")
        return answer is not None and answer.status == 200


class ApiServer(Program):
    """The API server, with one user: the bearer of TOKEN, who may do everything."""

    tool = KUBE_APISERVER

    def __init__(self, etcd: Etcd) -> None:
        super().__init__()
        self._etcd = etcd
        self._api: Api | None = None

    @property
    def url(self) -> str:
        return f"https://{address(self.ports[0])}"

    @property
    def key(self) -> Path:
        """Signs the tokens of service accounts; the controller manager needs it too."""
        assert self.folder is not None
        return self.folder / "service-accounts.key"

    @property
    def certificate(self) -> Path:
        """What the server shows, signed by itself."""
        assert self.folder is not None
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def api(self) -> Api:
        if self._api is None:
            self._api = Api(self.url, TOKEN, self.certificate)
        return self._api

    def arguments(self, folder: Path) -> Sequence[str]:
        (folder / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n", encoding="utf-8")
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self.key), "2048"], check=True, capture_output=True, timeout=60
        )
        return [
            f"--etcd-servers={self._etcd.url}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={self.ports[0]}",
            f"--cert-dir={folder / 'certificates'}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.key}",
            f"--service-account-signing-key-file={self.key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            # It keeps no endpoints of its own: they refuse a loopback address, and nothing uses them.
            "--endpoint-reconciler-type=none",
        ]

    def ready(self) -> bool:
        self._api = None
        return _is_whole(self.certificate) and self.api.healthy()


def _is_whole(certificate: Path) -> bool:
    """Whether its file is there, and written to its end."""
    try:
        return certificate.read_text(encoding="ascii").rstrip().endswith("-----END CERTIFICATE-----")
    except FileNotFoundError:
        return False


class _Client(Program):
    """A part that talks to the API server."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__()
        self._server = server

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        write_kubeconfig(path, self._server)
        return path


class _Serving(_Client):
    """The controller manager and the scheduler: alike in how they are told and asked."""

    def arguments(self, folder: Path) -> Sequence[str]:
        kubeconfig = self.kubeconfig(folder)
        return [
            f"--kubeconfig={kubeconfig}",
            # Nobody asks it but for its health.
            "--authentication-skip-lookup=true",
            f"--bind-address={HOST}",
            f"--secure-port={self.ports[0]}",
            f"--cert-dir={folder / 'certificates'}",
            "--leader-elect=false",
        ]

    def ready(self) -> bool:
        assert self.folder is not None
        certificate = next((self.folder / "certificates").glob("*.crt"), None)
        if certificate is None or not _is_whole(certificate):
            return False
        return Api(f"https://{address(self.ports[0])}", "", certificate).healthy()


class ControllerManager(_Serving):
    """Makes pods of Deployments, StatefulSets and Jobs, counts disruption budgets, removes orphans."""

    tool = KUBE_CONTROLLER_MANAGER

    def arguments(self, folder: Path) -> Sequence[str]:
        return [
            *super().arguments(folder),
            f"--service-account-private-key-file={self._server.key}",
            "--use-service-account-credentials=false",
        ]


class Scheduler(_Serving):
    """Gives pods their nodes."""

    tool = KUBE_SCHEDULER


class Kwok(_Client):
    """Plays the kubelets of all nodes, by the stages of stages.yaml."""

    tool = KWOK

    def arguments(self, folder: Path) -> Sequence[str]:
        return [
            f"--kubeconfig={self.kubeconfig(folder)}",
            f"--config={Path(__file__).parent / 'stages.yaml'}",
            "--manage-all-nodes=true",
            f"--server-address={address(self.ports[0])}",
            "--node-lease-duration-seconds=40",
        ]

    def ready(self) -> bool:
        answer = request(f"http://{address(self.ports[0])}/healthz")
        return answer is not None and answer.status == 200


class ControlPlane:
    """All of it. Use it as a context manager, or call start() and stop()."""

    def __init__(self) -> None:
        self.etcd = Etcd()
        self.server = ApiServer(self.etcd)
        self._clients = (ControllerManager(self.server), Scheduler(self.server), Kwok(self.server))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def api(self) -> Api:
        return self.server.api

    @property
    def kubeconfig(self) -> Path:
        """For Helm, and for a look with kubectl while a test stands still."""
        assert self.server.folder is not None
        return self.server.folder / "kubeconfig"

    def start(self) -> None:
        """Start all parts, with their nodes ready and the CRDs of KEDA and the Prometheus operator served."""
        try:
            self.etcd.start()
            self.server.start()
            write_kubeconfig(self.kubeconfig, self.server)
            with ThreadPoolExecutor() as threads:
                for done in [threads.submit(client.start) for client in self._clients]:
                    done.result()
            for number in range(1, NODES + 1):
                self._add_node(f"node-{number}")
            for tool, kinds in ((KEDA_CRDS, _KEDA), (PROMETHEUS_CRDS, _PROMETHEUS)):
                self._define(tool, kinds)
            wait_until(self._nodes_ready, 60, "the nodes to be ready")
        except BaseException:
            print(self.last_words())
            self.stop()
            raise

    def stop(self) -> None:
        """End what was started, the store last."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda client: client.stop(), self._clients))
        self.server.stop()
        self.etcd.stop()

    def last_words(self) -> str:
        """The last lines of each part's log, for a test that failed."""
        parts = (self.etcd, self.server, *self._clients)
        return "\n".join(f"--- {part!r}\n{part.last_words()}" for part in parts)

    def _add_node(self, name: str) -> None:
        room = {"cpu": "64", "memory": "256Gi", "pods": "200"}
        labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-of-{name}"}
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        self.api.patch_status("v1", "Node", name, {"allocatable": room, "capacity": room})

    def _nodes_ready(self) -> bool:
        return all(
            any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))
            and not node["spec"].get("taints")
            for node in self.api.all("v1", "Node")
        )

    def _define(self, tool: Files, kinds: Sequence[str]) -> None:
        for name in kinds:
            text = (build(tool) / f"{name}.yaml").read_text(encoding="utf-8")
            made = self.api.create(yaml.safe_load(text))
            wait_until(partial(self._served, made), 30, f"the API server to serve {name}")

    def _served(self, definition: Mapping[str, Any]) -> bool:
        found = self.api.get(definition["apiVersion"], definition["kind"], definition["metadata"]["name"])
        conditions = (found or {}).get("status", {}).get("conditions") or ()
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


_KEDA = ("keda.sh_scaledobjects", "keda.sh_scaledjobs", "keda.sh_triggerauthentications")
_PROMETHEUS = (
    "monitoring.coreos.com_podmonitors",
    "monitoring.coreos.com_servicemonitors",
    "monitoring.coreos.com_prometheusrules",
)


def write_kubeconfig(path: Path, server: ApiServer) -> None:
    """A kubeconfig with which everything may be done on this API server."""
    context = {"cluster": "test", "user": "admin"}
    where = {"server": server.url, "certificate-authority": str(server.certificate)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": where}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "test", "context": context}],
    }
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    path.chmod(0o600)
