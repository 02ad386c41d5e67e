"""Builds Go programs once a machine, from the modules under go/ that pin their versions.

The cache is ~/.cache/streamloop-tools, or the folder in TOOLS_CACHE. A program is built into a temporary
folder and renamed, so that it is there whole or not at all; one file lock for all programs keeps two runs
from building at the same time. What calls it: the fixtures, `python -m tests.tools build` and the package
`stack`. It never changes a program that is there.
"""

import fcntl
import hashlib
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

    @property
    def version(self) -> str:
        """The version that go.mod pins."""
        text = (self.module / "go.mod").read_text(encoding="utf-8")
        found = re.search(rf"^(?:require)?\s*{re.escape(self.versioned_by)} v(\S+)", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"{self.module / 'go.mod'} does not pin {self.versioned_by}")
        return found.group(1)

    @property
    def path(self) -> Path:
        """Where the program is once it was built; a changed pin or source leads to a place of its own."""
        digest = hashlib.sha256()
        for source in sorted([*self.module.glob("go.*"), *self.module.glob("*.go")]):
            digest.update(source.read_bytes())
        return tools_cache() / f"{self.name}-{self.version}-{digest.hexdigest()[:8]}" / self.name


_PROMETHEUS = "github.com/prometheus/prometheus"
_JAEGER = "github.com/jaegertracing/jaeger"

PROMTOOL = Tool("promtool", MODULES / "prometheus", f"{_PROMETHEUS}/cmd/promtool", _PROMETHEUS)
PROMETHEUS = Tool("prometheus", MODULES / "prometheus", f"{_PROMETHEUS}/cmd/prometheus", _PROMETHEUS)
JAEGER = Tool("jaeger", MODULES / "jaeger", f"{_JAEGER}/cmd/jaeger", _JAEGER)
COMPOSE = Tool("compose", MODULES / "compose", ".", "github.com/compose-spec/compose-go/v2")
_FOUNDATION = "github.com/grafana/grafana-foundation-sdk/go"
GRAFANA = Tool("grafana", MODULES / "grafana", ".", _FOUNDATION)
TOOLS = (COMPOSE, GRAFANA, PROMTOOL, PROMETHEUS, JAEGER)


def build(tool: Tool) -> Path:
    """The program; built when it is not in the cache yet, which takes minutes.

    ToolUnavailableError when Go is missing, too old, or the build fails.
    """
    path = tool.path
    if path.is_file():
        return path
    go = shutil.which("go")
    if go is None:
        raise ToolUnavailableError(
            f"{tool.name} {tool.version} is not in {tools_cache()} and building it needs Go; "
            f"no go is on PATH (install Go {_wanted_go(tool)} or newer)."
        )
    tools_cache().mkdir(parents=True, exist_ok=True)
    with _locked(tools_cache() / "go-build.lock"):
        if not path.is_file():  # another run may have built it while this one waited
            _build(go, tool, path.parent)
    return path


def _wanted_go(tool: Tool) -> str:
    text = (tool.module / "go.mod").read_text(encoding="utf-8")
    found = re.search(r"^go (\S+)", text, re.MULTILINE)
    return found.group(1) if found else ""


def _build(go: str, tool: Tool, folder: Path) -> None:
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        # Behind everything else on the machine: a build takes all cores for minutes.
        argv = ["nice", "-n", "19", go, "build", "-trimpath", "-ldflags=-s -w"]
        argv += ["-o", str(building / tool.name), tool.package]
        done = subprocess.run(
            argv,
            cwd=tool.module,
            env={**os.environ, "GOWORK": "off"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.strip() and "downloading" not in line]
            raise ToolUnavailableError(
                f"Go could not build {tool.name} {tool.version} (exit {done.returncode}; it needs Go "
                f"{_wanted_go(tool)} or newer): {' '.join(said[-5:]) or 'no message'}"
            )
        building.rename(folder)
    except subprocess.TimeoutExpired as error:
        raise ToolUnavailableError(
            f"Go did not build {tool.name} {tool.version} within {BUILD_SECONDS:g} s."
        ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
