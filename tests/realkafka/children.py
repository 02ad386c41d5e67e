"""Child processes that never outlive the test run, however it ends.

Each child gets a process group of its own and is ended by that group's id. A reaper process holds the read
end of a pipe whose write end only the test run has: when that run ends in any way, SIGKILL included, the
reaper sees the end of the file, kills the groups that are still registered and removes the registered
folders. What calls it: the Kafka nodes and the member processes. It never signals a process that it did not
start.
"""

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

REAP_SECONDS = 10.0

# Runs in the reaper: no imports from the project, so that it starts in a few milliseconds and survives
# everything.
_REAPER = """
import os, shutil, signal, sys
groups, folders = set(), set()
for line in sys.stdin:
    verb, _, what = line.rstrip("\\n").partition(" ")
    if verb == "group": groups.add(int(what))
    elif verb == "ended": groups.discard(int(what))
    elif verb == "folder": folders.add(what)
    elif verb == "removed": folders.discard(what)
for group in groups:
    try: os.killpg(group, signal.SIGKILL)
    except OSError: pass
for folder in folders: shutil.rmtree(folder, ignore_errors=True)
"""


class _Reaper:
    """The process that cleans up after this one. Started with the first child, ended with the run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def tell(self, verb: str, what: object) -> None:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _REAPER],
                    stdin=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                atexit.register(self._close)
            assert self._process.stdin is not None
            self._process.stdin.write(f"{verb} {what}\n")
            self._process.stdin.flush()

    def _close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=REAP_SECONDS)


_reaper = _Reaper()


def remove_folder_at_exit(folder: Path) -> None:
    """Have the folder removed when this process is gone."""
    _reaper.tell("folder", folder)


def folder_removed(folder: Path) -> None:
    """The folder is gone already."""
    _reaper.tell("removed", folder)


class Child:
    """One child process and its process group."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdout: IO[bytes] | int,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
        _reaper.tell("group", self.process.pid)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Signal the process itself; nothing happens when it has ended."""
        self.process.send_signal(number)

    def end(self, grace: float) -> int:
        """End the group and reap it: SIGTERM, then SIGKILL after `grace` seconds (0: at once)."""
        if self.running:
            self.signal(signal.SIGCONT)  # a stopped process takes SIGTERM only once it goes on
            if grace > 0:
                self.signal(signal.SIGTERM)
                try:
                    self.process.wait(timeout=grace)
                except subprocess.TimeoutExpired:
                    self.signal(signal.SIGKILL)
            else:
                self.signal(signal.SIGKILL)
        code = self.process.wait(timeout=REAP_SECONDS)
        try:
            os.killpg(self.pid, signal.SIGKILL)  # what it started and left
        except (ProcessLookupError, PermissionError):  # the latter is how macOS says that the group is gone
            pass
        _reaper.tell("ended", self.pid)
        return code
