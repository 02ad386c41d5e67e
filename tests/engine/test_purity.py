"""The engine stays pure: of the standard library no clock, thread, loop or I/O, and nothing else of ours."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import streamloop.engine

ENGINE = Path(streamloop.engine.__file__).parent
MODULES = sorted(ENGINE.rglob("*.py"))

DENIED = {
    "_thread",
    "asyncio",
    "concurrent",
    "contextvars",
    "ctypes",
    "datetime",
    "gc",
    "http",
    "importlib",
    "io",
    "logging",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "pickle",
    "platform",
    "queue",
    "sched",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "socketserver",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
    "warnings",
    "weakref",
}
"""Of the standard library: what has a clock, a thread, a loop, I/O, or state of the process."""

DENIED_CALLS = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint", "globals"}


def denied(names: list[str], line: int) -> list[str]:
    """Of imported names, those that the engine may not have."""
    found = []
    for name in names:
        top = name.partition(".")[0]
        if top == "streamloop":
            if name != "streamloop.engine" and not name.startswith("streamloop.engine."):
                found.append(f"line {line}: {name} is outside the engine")
        elif top in DENIED or (top not in sys.stdlib_module_names and top != "__future__"):
            found.append(f"line {line}: {name}")
    return found


def impurities(source: str) -> list[str]:
    """What a module of the engine may not have."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += denied([alias.name for alias in node.names], node.lineno)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                found.append(f"line {node.lineno}: a relative import")
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "streamloop" else [module]
            found += denied(names, node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DENIED_CALLS:
            found.append(f"line {node.lineno}: {node.func.id}()")
        elif isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith):
            found.append(f"line {node.lineno}: async")
        elif isinstance(node, ast.Global):
            found.append(f"line {node.lineno}: global {', '.join(node.names)}")
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_the_engine_has_no_clock_thread_loop_or_io_and_needs_nothing_outside(module: Path) -> None:
    assert impurities(module.read_text(encoding="utf-8")) == []


def test_all_modules_of_the_engine_are_looked_at() -> None:
    assert {"engine.py", "states.py", "ledger.py", "retry.py"} <= {module.name for module in MODULES}


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic",
        "import asyncio.events",
        "from datetime import datetime",
        "import confluent_kafka",
        "from streamloop.kafka import poller",
        "from streamloop import message",
        "import streamloop",
        "from .. import errors",
        "def f():\n    import threading",
        "if TYPE_CHECKING:\n    from streamloop.message import Message",
        "async def f(): ...",
        "open('x')",
        "__import__('time')",
        "def f():\n    global counter\n    counter = 1",
    ],
)
def test_what_is_not_pure_is_found(source: str) -> None:
    assert impurities(source)


def test_what_is_pure_is_let_through() -> None:
    assert (
        impurities(
            "import heapq\nfrom streamloop.engine import events\nfrom streamloop.engine.retry import decide"
        )
        == []
    )
