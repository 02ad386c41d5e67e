"""Helm, with folders of its own: what the developer's Helm knows and keeps is neither read nor changed.

What calls it: the fixture `helm` (templates, lint: no cluster) and tests/cluster (a Helm that knows one).
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.realkafka.children import folder_removed, remove_folder_at_exit
from tests.tools.build import HELM, build

RUN_SECONDS = 300.0


class HelmError(Exception):
    """Helm ended with an error. The text is what it said."""


class Helm:
    """Runs Helm. Use it as a context manager, or call close(): its folders are removed."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """environment: variables that Helm gets besides the usual ones, such as KUBECONFIG."""
        self.path = build(HELM)
        self._folder = Path(tempfile.mkdtemp(prefix="streamloop-helm-"))
        remove_folder_at_exit(self._folder)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
        own = {f"HELM_{name}_HOME": str(self._folder / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        # A kubeconfig that is not there: without a cluster of the caller's, none is found.
        self._environment = {**kept, **own, "KUBECONFIG": str(self._folder / "none"), **(environment or {})}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove its folders."""
        shutil.rmtree(self._folder, ignore_errors=True)
        folder_removed(self._folder)

    def run(self, *arguments: str | Path, stdin: str = "") -> str:
        """helm ARGUMENTS: what it printed on stdout. HelmError with what it said when it fails."""
        done = self.process(*arguments, stdin=stdin)
        if done.returncode != 0:
            raise HelmError((done.stderr + done.stdout).strip())
        return done.stdout

    def process(self, *arguments: str | Path, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """The same, however it ends."""
        return subprocess.run(
            [str(self.path), *map(str, arguments)],
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )

    def template(
        self, chart: Path, *arguments: str | Path, release: str = "billing", values: Any = None
    ) -> list[dict[str, Any]]:
        """The objects that the chart makes of its own values, the files in arguments (-f) and `values`."""
        given = [] if values is None else ["-f", "-"]
        text = self.run(
            "template",
            release,
            chart,
            *arguments,
            *given,
            stdin="" if values is None else yaml.safe_dump(values),
        )
        return [document for document in yaml.safe_load_all(text) if document]
