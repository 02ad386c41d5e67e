"""promtool: checks Prometheus' configuration, rules, unit tests of rules, and the text form of metrics.

What calls it: the fixture `promtool`. It reads files and changes nothing.
"""

import subprocess
from pathlib import Path

from tests.tools.build import PROMTOOL, build

CHECK_SECONDS = 120.0


class Promtool:
    """Each call raises AssertionError with promtool's words when it finds something; else it returns them."""

    def __init__(self) -> None:
        self.path = build(PROMTOOL)

    def check_config(self, path: Path) -> str:
        """The configuration, and the rule files that it names."""
        return self._run("check", "config", "--lint=all", "--lint-fatal", str(path))

    def check_rules(self, path: Path) -> str:
        """A rule file."""
        return self._run("check", "rules", "--lint=all", "--lint-fatal", str(path))

    def test_rules(self, path: Path) -> str:
        """Unit tests of rules."""
        return self._run("test", "rules", str(path))

    def check_metrics(self, text: str) -> str:
        """Metrics in Prometheus' text form (not OpenMetrics)."""
        return self._run("check", "metrics", stdin=text)

    def _run(self, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [str(self.path), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS,
            check=False,
        )
        said = (done.stdout + done.stderr).strip()
        if done.returncode != 0:
            raise AssertionError(f"promtool {' '.join(arguments[:2])} ended with {done.returncode}:\n{said}")
        return said
