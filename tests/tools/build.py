"""Builds Go programs, or copies files of Go modules, once a machine; the modules under go/ pin the versions.

The cache is ~/.cache/streamloop-tools, or the folder in TOOLS_CACHE. A program is built into a temporary
folder and renamed, so that it is there whole or not at all; one file lock for all programs keeps two runs
from building at the same time. What calls it: the fixtures, `python -m tests.tools build` and the package
`stack`. It never changes a program that is there.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.realkafka.jars import tools_cache

MODULES = Path(__file__).parent / "go"
BUILD_SECONDS = 1800.0


class ToolUnavailableError(Exception):
    """A program can't be built on this machine. The text says what is missing and how to install it."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A program: its name, the folder of its Go module, its package, and the module whose version it has."""

    name: str
    module: Path
    package: str
    versioned_by: str
    stamps: tuple[str, ...] = ()
    """Variables that the linker sets, name={version}: programs that are asked for their version need them."""

    @property
    def version(self) -> str:
        """The version that go.mod pins."""
        text = (self.module / "go.mod").read_text(encoding="utf-8")
        found = re.search(rf"^(?:require)?\s*{re.escape(self.versioned_by)} v(\S+)", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"{self.module / 'go.mod'} does not pin {self.versioned_by}")
        return found.group(1)

    @property
    def ldflags(self) -> str:
        """What the linker is told: no symbol tables (a third of the size), and the stamps."""
        major, minor, *_ = self.version.split(".")
        stamps = [stamp.format(version=self.version, major=major, minor=minor) for stamp in self.stamps]
        return " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in stamps)])

    @property
    def path(self) -> Path:
        """Where the program is once it was built; a changed pin or source leads to a place of its own."""
        digest = hashlib.sha256()
        for source in sorted([*self.module.glob("go.*"), *self.module.glob("*.go")]):
            digest.update(source.read_bytes())
        digest.update("".join(self.stamps).encode())
        return tools_cache() / f"{self.name}-{self.version}-{digest.hexdigest()[:8]}" / self.name

    def make(self, go: str, target: Path) -> None:
        """Build it into target. ToolUnavailableError with Go's last words when that fails."""
        # Behind everything else on the machine: a build takes all cores for minutes.
        flags = ["-trimpath", f"-ldflags={self.ldflags}", "-o", str(target)]
        self._go("nice", "-n", "19", go, "build", *flags, self.package)

    def _go(self, *argv: str) -> str:
        what = f"{self.name} {self.version}"
        try:
            done = subprocess.run(
                argv,
                cwd=self.module,
                env={**os.environ, "GOWORK": "off"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ToolUnavailableError(f"Go did not build {what} within {BUILD_SECONDS:g} s.") from error
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.strip() and "downloading" not in line]
            raise ToolUnavailableError(
                f"Go could not build {what} (exit {done.returncode}; it needs Go "
                f"{_wanted_go(self)} or newer): {' '.join(said[-5:]) or 'no message'}"
            )
        return done.stdout


@dataclass(frozen=True, slots=True)
class Files(Tool):
    """A folder of a Go module that is not built but copied, for its files: `package` is its path there."""

    def make(self, go: str, target: Path) -> None:
        """Copy it to target. ToolUnavailableError when the module can't be had or is not what go.sum says."""
        said = self._go(go, "mod", "download", "-json", f"{self.versioned_by}@v{self.version}")
        target.mkdir()
        for file in (Path(json.loads(said)["Dir"]) / self.package).iterdir():
            shutil.copyfile(file, target / file.name)  # without its mode: modules are read-only


_PROMETHEUS = "github.com/prometheus/prometheus"
_JAEGER = "github.com/jaegertracing/jaeger"

PROMTOOL = Tool("promtool", MODULES / "prometheus", f"{_PROMETHEUS}/cmd/promtool", _PROMETHEUS)
PROMETHEUS = Tool("prometheus", MODULES / "prometheus", f"{_PROMETHEUS}/cmd/prometheus", _PROMETHEUS)
JAEGER = Tool("jaeger", MODULES / "jaeger", f"{_JAEGER}/cmd/jaeger", _JAEGER)
COMPOSE = Tool("compose", MODULES / "compose", ".", "github.com/compose-spec/compose-go/v2")
_FOUNDATION = "github.com/grafana/grafana-foundation-sdk/go"
GRAFANA = Tool("grafana", MODULES / "grafana", ".", _FOUNDATION)
HELM = Tool(
    "helm",
    MODULES / "helm",
    "helm.sh/helm/v4/cmd/helm",
    "helm.sh/helm/v4",
    ("helm.sh/helm/v4/internal/version.version=v{version}",),
)
ETCD = Tool("etcd", MODULES / "etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3")
KWOK = Tool("kwok", MODULES / "kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok")


def _kubernetes(name: str) -> Tool:
    stamp = "k8s.io/component-base/version.git"
    stamps = (f"{stamp}Version=v{{version}}", f"{stamp}Major={{major}}", f"{stamp}Minor={{minor}}")
    return Tool(name, MODULES / "kubernetes", f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes", stamps)


KUBE_APISERVER = _kubernetes("kube-apiserver")
KUBE_CONTROLLER_MANAGER = _kubernetes("kube-controller-manager")
KUBE_SCHEDULER = _kubernetes("kube-scheduler")
CONTROL_PLANE = (ETCD, KUBE_APISERVER, KUBE_CONTROLLER_MANAGER, KUBE_SCHEDULER, KWOK)

KEDA_CRDS = Files("keda-crds", MODULES / "crds", "config/crd/bases", "github.com/kedacore/keda/v2")
PROMETHEUS_CRDS = Files(
    "prometheus-crds",
    MODULES / "crds",
    "example/prometheus-operator-crd",
    "github.com/prometheus-operator/prometheus-operator",
)
TOOLS = (COMPOSE, GRAFANA, PROMTOOL, PROMETHEUS, JAEGER, HELM, *CONTROL_PLANE, KEDA_CRDS, PROMETHEUS_CRDS)


def build(tool: Tool) -> Path:
    """The program; built when it is not in the cache yet, which takes minutes.

    ToolUnavailableError when Go is missing, too old, or the build fails.
    """
    path = tool.path
    if path.exists():
        return path
    go = shutil.which("go")
    if go is None:
        raise ToolUnavailableError(
            f"{tool.name} {tool.version} is not in {tools_cache()} and building it needs Go; "
            f"no go is on PATH (install Go {_wanted_go(tool)} or newer)."
        )
    tools_cache().mkdir(parents=True, exist_ok=True)
    with _locked(tools_cache() / "go-build.lock"):
        if not path.exists():  # another run may have built it while this one waited
            _make(go, tool, path.parent)
    return path


def _wanted_go(tool: Tool) -> str:
    text = (tool.module / "go.mod").read_text(encoding="utf-8")
    found = re.search(r"^go (\S+)", text, re.MULTILINE)
    return found.group(1) if found else ""


def _make(go: str, tool: Tool, folder: Path) -> None:
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        tool.make(go, building / tool.name)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
