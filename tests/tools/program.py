"""A program on free ports of 127.0.0.1 with a folder of its own: started, awaited, ended by its process id.

What calls it: Jaeger and Prometheus. Should another process take a port between the look and the start, the
program is started again on others.
"""

import json
import os
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.realkafka.children import Child, folder_removed, remove_folder_at_exit
from tests.realkafka.node import HOST, free_ports
from tests.realkafka.waiting import wait_until
from tests.tools.build import Tool, build

START_SECONDS = 60.0
START_TRIES = 3
STOP_SECONDS = 10.0
ANSWER_SECONDS = 10.0


class EndedEarlyError(RuntimeError):
    """The program ended before it was ready. The text has its last lines."""


class Answer:
    """What a request got: the status and the body."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body

    def __repr__(self) -> str:
        return f"<Answer {self.status} {self.body[:200]!r}>"

    def json(self) -> Any:
        return json.loads(self.body)


def request(
    url: str,
    query: Mapping[str, str] | None = None,
    *,
    post: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    seconds: float = ANSWER_SECONDS,
) -> Answer | None:
    """Ask a program on this machine. None when nothing listens; an error status is an answer too.

    seconds: how long it may take to answer (default 10); None when it takes longer.
    """
    address = f"{url}?{urllib.parse.urlencode(query)}" if query else url
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(
            urllib.request.Request(address, data=post, headers=dict(headers or {})), timeout=seconds
        ) as answer:
            return Answer(answer.status, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read())
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


class Program:
    """One program. Use it as a context manager, or call start() and stop(); both may be repeated.

    ToolUnavailableError says what to install where it can't be built.
    """

    tool: Tool
    port_count = 1

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.ports: list[int] = []
        self._child: Child | None = None

    def __repr__(self) -> str:
        state = "running" if self.running else "down"
        return f"<{type(self).__name__} {self.tool.version} {','.join(map(str, self.ports))} {state}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def arguments(self, folder: Path) -> Sequence[str]:
        """The program's arguments, given its folder; called once the ports are known."""

    def environment(self) -> Mapping[str, str]:
        """Variables that the program gets besides the usual ones."""
        return {}

    @abstractmethod
    def ready(self) -> bool:
        """Whether it answers."""

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    @property
    def pid(self) -> int:
        """Its process id. RuntimeError when it is down."""
        if self._child is None:
            raise RuntimeError(f"{self!r} has no process")
        return self._child.pid

    def start(self) -> None:
        """Build it if need be, start it, and wait until it answers."""
        program = build(self.tool)
        for tries_left in reversed(range(START_TRIES)):
            self.folder = Path(tempfile.mkdtemp(prefix=f"streamloop-{self.tool.name}-"))
            remove_folder_at_exit(self.folder)
            self.ports = free_ports(self.port_count)
            try:
                self._run(program, self.folder)
                return
            except BaseException as error:
                said = self.last_words()
                self.stop()
                taken = isinstance(error, EndedEarlyError) and "address already in use" in said
                if not (tries_left and taken):
                    raise

    def stop(self) -> None:
        """SIGTERM, SIGKILL when that takes too long; its folder is removed. Nothing when it is down."""
        child, self._child = self._child, None
        if child is not None:
            child.end(STOP_SECONDS)
        folder, self.folder = self.folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            folder_removed(folder)

    def kill(self) -> None:
        """SIGKILL: it is gone at once, and its ports refuse connections. stop() still removes its folder."""
        child, self._child = self._child, None
        if child is not None:
            child.end(0)

    def last_words(self, count: int = 15) -> str:
        """The last lines that it printed."""
        log = self.folder / "log.txt" if self.folder else None
        if log is None or not log.exists():
            return "(no output)"
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])

    def _run(self, program: Path, folder: Path) -> None:
        own = {**os.environ, **self.environment()}
        with (folder / "log.txt").open("ab") as output:
            self._child = Child([str(program), *self.arguments(folder)], stdout=output, cwd=folder, env=own)

        def ready() -> bool:
            if not self.running:
                raise EndedEarlyError(f"{self.tool.name} ended while starting:\n{self.last_words()}")
            return self.ready()

        wait_until(ready, START_SECONDS, lambda: f"{self.tool.name} to answer:\n{self.last_words()}")


def address(port: int) -> str:
    """host:port on this machine."""
    return f"{HOST}:{port}"
