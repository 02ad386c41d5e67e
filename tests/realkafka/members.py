"""Members of a group that run in processes of their own, so that a test can stop, kill and restart them.

What calls it: the fixture `members`, and the benchmarks for each rival. Each member is Python with a script
or a module; its output is captured line by line. Every member that was started is ended by its own id when
the test is over.
"""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.realkafka.children import Child

ROOT = Path(__file__).resolve().parents[2]


class Member:
    """One process and the lines that it printed (stdout and stderr together)."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._at_end = False
        read, write = os.pipe()
        try:
            self._child = Child(argv, stdout=write, cwd=folder, env=env)
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        self._reader = threading.Thread(target=self._read, args=(read,), name=f"lines of {name}", daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        return f"<Member {self.name} pid {self.pid} {'running' if self.running else 'ended'}>"

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.running

    @property
    def lines(self) -> list[str]:
        """What it printed so far, without line ends."""
        with self._changed:
            return list(self._lines)

    def wait_for_line(self, pattern: str, *, start: int = 0, timeout: float = 30.0) -> re.Match[str]:
        """The first line from number `start` on that the regular expression is found in.

        AssertionError with all its lines when none comes within `timeout` seconds, or the process ends
        without one.
        """
        wanted = re.compile(pattern)
        deadline = time.monotonic() + timeout
        seen = start
        with self._changed:
            while True:
                for line in self._lines[seen:]:
                    match = wanted.search(line)
                    if match:
                        return match
                seen = max(seen, len(self._lines))
                left = deadline - time.monotonic()
                if self._at_end or left <= 0:
                    why = "ended without printing" if self._at_end else f"did not print within {timeout:g} s"
                    raise AssertionError(
                        f"{self.name} {why} {pattern!r}; it printed:\n" + "\n".join(self._lines)
                    )
                self._changed.wait(left)

    def wait(self, timeout: float = 30.0) -> int:
        """Its exit code (negative: the signal that ended it). AssertionError when it runs on."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._at_end and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            if not self._at_end:
                raise AssertionError(
                    f"{self.name} still runs after {timeout:g} s; it printed:\n" + "\n".join(self._lines)
                )
        return self._child.process.wait(timeout=max(1.0, deadline - time.monotonic()))

    def terminate(self) -> None:
        """SIGTERM: a clean shutdown."""
        self._child.signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """SIGINT, as Ctrl-C sends it."""
        self._child.signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL and reaped: a crash."""
        self._child.end(0)
        self._reader.join(timeout=10)

    def suspend(self) -> None:
        """SIGSTOP."""
        self._child.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after suspend()."""
        self._child.signal(signal.SIGCONT)

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as output:
            for line in output:
                with self._changed:
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._at_end = True
            self._changed.notify_all()


class Members:
    """Starts members and ends them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Member] = []

    def start_script(
        self, source: str | Path, *args: str, name: str | None = None, env: Mapping[str, str] | None = None
    ) -> Member:
        """Run a script (a file, or its source text) with this Python."""
        if isinstance(source, Path):
            path = source
        else:
            path = self._folder / f"member_{len(self._started) + 1}.py"
            path.write_text(source, encoding="utf-8")
        return self.start([sys.executable, str(path), *args], name=name, env=env)

    def start_module(
        self, module: str, *args: str, name: str | None = None, env: Mapping[str, str] | None = None
    ) -> Member:
        """Run `python -m module args`, for example the command line of the package."""
        return self.start([sys.executable, "-m", module, *args], name=name, env=env)

    def start(
        self, argv: Sequence[str], *, name: str | None = None, env: Mapping[str, str] | None = None
    ) -> Member:
        """Run any program."""
        search = os.pathsep.join(filter(None, [str(self._folder), str(ROOT), os.environ.get("PYTHONPATH")]))
        member = Member(
            name or f"member-{len(self._started) + 1}",
            argv,
            self._folder,
            {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": search, **(env or {})},
        )
        self._started.append(member)
        return member

    def end(self) -> None:
        """Kill and reap what still runs."""
        for member in self._started:
            member.kill()

    def transcript(self) -> str:
        """What each of them printed."""
        return "\n".join("\n".join([f"--- {member!r}", *member.lines]) for member in self._started)
