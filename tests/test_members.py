"""Asking a member over HTTP: an answer that does not end, or ends too soon, is a sentence within a bound."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from streamloop.http_get import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


@contextmanager
def answering(serve: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """A server of one connection; gives its URL."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                try:
                    serve(connection, over)
                except OSError:
                    pass

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        finally:
            over.set()
            thread.join()


def drips(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(HEAD)
    while not over.wait(0.02):
        connection.sendall(b"x")


def breaks_off(connection: socket.socket, _over: threading.Event) -> None:
    connection.sendall(HEAD + b"loop_iterations_total 1\n")


def whole(connection: socket.socket, _over: threading.Event) -> None:
    connection.sendall(HEAD + b"y" * 1000)


def test_a_body_that_comes_byte_by_byte_is_given_up() -> None:
    with answering(drips) as url, pytest.raises(ValueError, match="no whole answer within"):
        fetch(url, timeout=0.3, accept="text/plain")


def test_a_body_that_breaks_off_is_no_answer() -> None:
    with answering(breaks_off) as url, pytest.raises(ValueError, match="IncompleteRead"):
        fetch(url, timeout=5, accept="text/plain")


def test_a_whole_body_is_the_answer() -> None:
    with answering(whole) as url:
        assert fetch(url, timeout=5, accept="text/plain") == (200, b"y" * 1000)
