"""Reads a compose file with the library that Docker Compose uses: needs no engine, starts nothing.

What calls it: the fixture `compose`.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.tools.build import COMPOSE, build

READ_SECONDS = 60.0


class Compose:
    """The reader."""

    def __init__(self) -> None:
        self.path = build(COMPOSE)

    def project(self, path: Path) -> dict[str, Any]:
        """The project, everything resolved: services, volumes, networks. ValueError when it is refused."""
        done = subprocess.run(
            [str(self.path), str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=READ_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise ValueError(f"{path.name} is refused: {done.stderr.strip()}")
        if done.stderr.strip():
            raise ValueError(f"{path.name} has something to warn of: {done.stderr.strip()}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found
