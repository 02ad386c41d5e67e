"""One listening address: binds it, and serves a small WSGI application from threads of its own.

waitress does the HTTP: it bounds threads, connections, header and body sizes and idle connections, and has
been attacked for longer than code of ours would be. The standard library's server says of itself that it is
not for production. Called by the run's operations.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

import waitress
from waitress import wasyncore

from streamloop.errors import ConfigurationError
from streamloop.settings.units import host_and_port

if TYPE_CHECKING:
    from streamloop.ops.web import Application

log = logging.getLogger("streamloop.ops")

_quiet = logging.getLogger("streamloop.ops.queue")
_quiet.setLevel(logging.ERROR)  # that an answer waited for a thread is nobody's worry

THREADS: Final = 4
CONNECTIONS: Final = 50
HEADERS: Final = 16 * 1024
BODY: Final = 16 * 1024
IDLE: Final = 15
"""Seconds that a connection may be silent."""
LONGEST: Final = 60
"""Seconds that a connection lives, a slow request's included."""
CLOSE_BOUND: Final = 1.0
"""Seconds that closing waits for answers that are under way."""


class Listener:
    """A bound address. ``setting`` is the one that named it, for errors.

    Raises ConfigurationError when it can't be bound.
    """

    def __init__(self, setting: str, address: str, application: Application, origin: object) -> None:
        self.setting = setting
        self._socket = _bind(setting, address, origin)
        self._map: dict[int, Any] = {}
        self._server: Any = waitress.create_server(
            application,
            map=self._map,
            sockets=[self._socket],
            threads=THREADS,
            connection_limit=CONNECTIONS,
            max_request_header_size=HEADERS,
            max_request_body_size=BODY,
            # What is refused is read all the same, or its sender sees a reset and no answer.
            recv_bytes=65_536,
            channel_timeout=IDLE,
            cleanup_interval=5,
            asyncore_use_poll=True,
            clear_untrusted_proxy_headers=True,
            log_socket_errors=False,
            ident=None,
        )
        self._server.maintenance = self._maintain
        self._server.task_dispatcher.queue_logger = _quiet
        self._thread = threading.Thread(target=self._serve, name=f"streamloop-{setting}", daemon=True)

    @property
    def port(self) -> int:
        """The port it is bound to, also when the setting says 0."""
        port: int = self._server.effective_port
        return port

    @property
    def url(self) -> str:
        """Where it answers."""
        host = str(self._server.effective_host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()
        log.info("%s: listening on %s", self.setting, self.url, extra={"kind": "listening", "url": self.url})

    def _serve(self) -> None:
        try:
            self._server.run()
        except Exception:
            # Whoever probes it sees that nobody answers.
            log.exception("%s: the listener has ended", self.setting, extra={"kind": "ops"})

    def _maintain(self, now: float) -> None:
        """Close what is silent, and what is old: one that sends byte by byte must not keep its place."""
        for channel in list(self._server.active_channels.values()):
            silent = now - channel.last_activity > IDLE
            if not channel.requests and (silent or now - channel.creation_time > LONGEST):
                channel.will_close = True

    def close(self) -> None:
        """Answer nobody any more. Bounded."""
        if self._thread.is_alive():
            try:
                # In its own thread: closing sockets under a poll that waits for them is a race.
                self._server.trigger.pull_trigger(lambda: wasyncore.close_all(self._map, ignore_all=True))
            except OSError:
                pass  # it has just ended
            self._thread.join(CLOSE_BOUND)
        else:
            wasyncore.close_all(self._map, ignore_all=True)
        self._server.task_dispatcher.shutdown(timeout=CLOSE_BOUND)
        self._socket.close()


def _bind(setting: str, address: str, origin: object) -> socket.socket:
    host, port = host_and_port(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigurationError(
            f"{setting} ({origin}) is {address}, and the host {host!r} is unknown here ({error.strerror}): "
            "give an address of this machine, such as 127.0.0.1:9464 or 0.0.0.0:9464"
        ) from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # only where it is told to
        listening.bind(where)
        listening.listen(CONNECTIONS)
    except OSError as error:
        listening.close()
        raise ConfigurationError(_why(setting, address, origin, error)) from None
    listening.setblocking(False)
    return listening


def _why(setting: str, address: str, origin: object, error: OSError) -> str:
    where = f"{setting} ({origin}) is {address}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"{where}, and that port is in use by another program (or another member): give each a port of "
            f"its own, 0 for any free one, or none to listen nowhere"
        )
    if error.errno == errno.EACCES:
        return f"{where}, and this user may not listen there: give a port of 1024 or above"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{where}, which is no address of this machine: give one, such as 127.0.0.1 or 0.0.0.0"
    return f"{where}, and it can't listen there: {error.strerror}"
