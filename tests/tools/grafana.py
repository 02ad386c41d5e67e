"""Reads Grafana's dashboards with the strict decoder of its Foundation SDK: needs no Grafana, starts nothing.

What calls it: the fixture `grafana`.
"""

import subprocess
from pathlib import Path

from tests.tools.build import GRAFANA, build

READ_SECONDS = 60.0


class Grafana:
    """The reader."""

    def __init__(self) -> None:
        self.path = build(GRAFANA)

    def problems(self, path: Path) -> list[str]:
        """What is wrong with a dashboard: the place and why, one each; empty when all is right."""
        done = subprocess.run(
            [str(self.path), str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=READ_SECONDS,
            check=False,
        )
        lines = [line.removeprefix(f"{path}: ") for line in done.stdout.splitlines()]
        if done.returncode not in (0, 1) or done.stderr.strip() or bool(lines) != bool(done.returncode):
            raise RuntimeError(f"the reader ended with {done.returncode}: {done.stdout}{done.stderr}")
        return lines
