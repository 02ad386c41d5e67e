"""One node of Apache Kafka in KRaft mode, broker and controller in one process.

What calls it: the cluster, and tests that kill, stop or restart one node. Ports and data stay the same across
restarts. It never decides whether the cluster is ready: the cluster asks the brokers.
"""

import os
import random
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.realkafka.children import Child

HOST = "127.0.0.1"
# Below what Linux and macOS give to outgoing connections, so that no client takes a node's port while the
# node is down.
PORTS = range(20_000, 32_000)
STOP_SECONDS = 20.0

# A test's time matters more than the broker's peak rate: the first compiler only starts a node a second
# sooner.
TEST_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
BENCH_JVM = ("-Xmx1g", "-XX:+UseSerialGC")

_LOG4J = """
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


def free_ports(count: int) -> list[int]:
    """Ports on 127.0.0.1 that are free now. Should another process take one, the cluster tries anew."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"fewer than {count} ports are free between {PORTS.start} and {PORTS.stop}")


class KafkaNode:
    """A node with its ports, its data folder and, while it runs, its process."""

    def __init__(
        self,
        node_id: int,
        port: int,
        controller_port: int,
        folder: Path,
        java: Sequence[str],
    ) -> None:
        self.node_id = node_id
        self.port = port
        self.controller_port = controller_port
        self.folder = folder
        self._java = list(java)
        self._child: Child | None = None
        self._suspended = False

    def __repr__(self) -> str:
        state = "suspended" if self._suspended else "running" if self.running else "down"
        return f"<KafkaNode {self.node_id} {self.address} {state}>"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        """What the node printed, all its starts after one another."""
        return self.folder / "server.log"

    @property
    def running(self) -> bool:
        """Whether its process exists; a suspended one does."""
        return self._child is not None and self._child.running

    @property
    def suspended(self) -> bool:
        return self._suspended

    def write_properties(self, properties: Mapping[str, str]) -> None:
        """Write the configuration that format() and start() use."""
        self.folder.mkdir(parents=True, exist_ok=True)
        own = {
            "node.id": str(self.node_id),
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{HOST}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": str(self.folder / "data"),
        }
        lines = (f"{name}={value}\n" for name, value in {**own, **properties}.items())
        self._properties.write_text("".join(lines), encoding="utf-8")
        self._log4j.write_text(_LOG4J, encoding="utf-8")

    def format(self, cluster_id: str) -> Child:
        """Start formatting the data folder; the caller awaits the process."""
        return self._run(
            ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._properties)], self.log
        )

    def start(self) -> None:
        """Start the process. Does not wait until it answers: the cluster's wait_ready() does."""
        if self.running:
            raise RuntimeError(f"{self!r} is to be started but runs already")
        self._child = self._run(["kafka.Kafka", str(self._properties)], self.log)

    def stop(self, grace: float = STOP_SECONDS) -> None:
        """A clean stop by SIGTERM; SIGKILL after `grace` seconds. Nothing happens when it is down."""
        self._end(grace)

    def kill(self) -> None:
        """End it at once by SIGKILL, as a crash would."""
        self._end(0)

    def suspend(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP)
        self._suspended = True

    def resume(self) -> None:
        """SIGCONT after suspend()."""
        self._signal(signal.SIGCONT)
        self._suspended = False

    def listening(self) -> bool:
        """Whether its broker port takes connections, which it does once it serves requests."""
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((HOST, self.port)) == 0

    def last_words(self, count: int = 15) -> str:
        """The last lines that it printed, for an error that names the reason."""
        if not self.log.exists():
            return "(no output)"
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _log4j(self) -> Path:
        return self.folder / "log4j2.properties"

    def _run(self, argv: Sequence[str], log: Path) -> Child:
        with log.open("ab") as output:
            return Child(
                [*self._java, f"-Dlog4j2.configurationFile={self._log4j}", *argv],
                stdout=output,
                cwd=self.folder,
                env={**os.environ, "LC_ALL": "C"},
            )

    def _signal(self, number: int) -> None:
        if self._child is None or not self._child.running:
            raise RuntimeError(f"{self!r} has no process to signal")
        self._child.signal(number)

    def _end(self, grace: float) -> None:
        child, self._child, self._suspended = self._child, None, False
        if child is not None:
            child.end(grace)
