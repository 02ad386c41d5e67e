"""One connection to one address, step by step: name, TCP, TLS, Kafka, login. Says where it fails, and why.

librdkafka says of all of these "broker transport failure". Speaks the three requests of Kafka's protocol that
a listener answers before a login (ApiVersions, SaslHandshake) or refuses without one (Metadata of no topic).
Sends no password, writes nothing. Every wait has a bound. Called by ``addresses`` and ``process``.

The layouts are those of Kafka's protocol guide: https://kafka.apache.org/protocol.html
"""

from __future__ import annotations

import enum
import socket
import ssl
import struct
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

METADATA, SASL_HANDSHAKE, API_VERSIONS = 3, 17, 18
CONSUMER_GROUP_HEARTBEAT: Final = 68
UNSUPPORTED_VERSION: Final = 35
ILLEGAL_SASL_STATE: Final = 34
LONGEST_ANSWER: Final = 1024 * 1024
_CLIENT: Final = b"streamloop-doctor"


class Step(enum.Enum):
    """Where a connection ends."""

    NAME = "name"
    CONNECT = "connect"
    TLS = "tls"
    KAFKA = "kafka"
    LOGIN = "login"


class Mistake(enum.Enum):
    """What is known to be wrong with how it was spoken to."""

    NONE = "none"
    WANTS_TLS = "wants tls"
    NO_TLS = "no tls"
    CERTIFICATE = "certificate"
    WANTS_LOGIN = "wants login"
    NO_LOGIN = "no login"
    MECHANISM = "mechanism"


@dataclass(slots=True)
class Probe:
    """How far it got. ``failed``: the step that did not work, None when all did.

    ``apis``: API key to (lowest, highest) version. ``features``: finalized features by name.
    ``mechanisms``: those that the listener takes. ``certificate_ends``: epoch seconds.
    """

    host: str
    port: int
    failed: Step | None = None
    why: str = ""
    mistake: Mistake = Mistake.NONE
    ip: str = ""
    apis: dict[int, tuple[int, int]] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    mechanisms: tuple[str, ...] = ()
    certificate_ends: float | None = None

    def fail(self, step: Step, why: str, mistake: Mistake = Mistake.NONE) -> None:
        """It ends here."""
        self.failed, self.why, self.mistake = step, why, mistake


class _ClosedError(OSError):
    """The other side closed the connection."""


class _StrangeError(OSError):
    """What came back is no answer of Kafka's. ``start``: its first bytes."""

    def __init__(self, start: bytes) -> None:
        super().__init__("the answer is none of Kafka's")
        self.start = start


def probe(
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None,
    mechanism: str | None,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
) -> Probe:
    """Look at one address within ``timeout`` seconds, and some more to find out what was wrong.

    ``tls``: how to, None: plaintext. ``mechanism``: of SASL, None: no login. Never raises.
    """
    found = Probe(host, port)
    until = clock() + timeout
    try:
        found.ip = resolve(host, port, timeout)
    except OSError as error:
        found.fail(Step.NAME, _said(error))
        return found
    try:
        connection = _connect(found, until - clock())
    except OSError as error:
        found.fail(Step.CONNECT, _said(error))
        return found
    with closing(connection):
        _talk(found, connection, tls, mechanism, lambda: until - clock())
    return found


def _talk(
    found: Probe,
    connection: socket.socket,
    tls: ssl.SSLContext | None,
    mechanism: str | None,
    left: Callable[[], float],
) -> None:
    if tls is None:
        _kafka(found, connection, mechanism, left, plain=True)
        return
    try:
        wrapped = tls.wrap_socket(connection, server_hostname=found.host)
    except ssl.SSLCertVerificationError as error:
        found.fail(Step.TLS, error.verify_message or str(error), Mistake.CERTIFICATE)
    except OSError as error:
        mistake = Mistake.NO_TLS if speaks(found, None, left()) else Mistake.NONE
        found.fail(Step.TLS, _said(error), mistake)
    else:
        with closing(wrapped):
            found.certificate_ends = _ends(wrapped)
            _kafka(found, wrapped, mechanism, left, plain=False)


def _kafka(
    found: Probe, talk: socket.socket, mechanism: str | None, left: Callable[[], float], *, plain: bool
) -> None:
    try:
        found.apis, found.features = _api_versions(talk)
    except OSError as error:
        wants = plain and speaks(found, _anyone(), left())
        found.fail(Step.KAFKA, _said(error), Mistake.WANTS_TLS if wants else Mistake.NONE)
        return
    try:
        _login(talk, found, mechanism)
    except OSError as error:
        wants = mechanism is None and isinstance(error, _ClosedError)
        found.fail(Step.LOGIN, _said(error), Mistake.WANTS_LOGIN if wants else Mistake.NONE)


def resolve(host: str, port: int, timeout: float) -> str:
    """The first address of a name. getaddrinfo has no time-out, so it is asked on a thread. Raises
    OSError."""
    answer: list[str | OSError] = []

    def ask() -> None:
        try:
            answer.append(str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]))
        except (OSError, UnicodeError) as error:
            answer.append(error if isinstance(error, OSError) else OSError("it is no name"))

    asking = threading.Thread(target=ask, daemon=True, name="streamloop-resolve")
    asking.start()
    asking.join(max(0.1, timeout))
    if not answer:
        raise TimeoutError(f"no answer within {timeout:g} s")
    if isinstance(answer[0], OSError):
        raise answer[0]
    return answer[0]


def listens(host: str, port: int, timeout: float) -> str:
    """Empty when something takes connections there, else why not."""
    try:
        socket.create_connection((resolve(host, port, timeout), port), max(0.1, timeout)).close()
    except OSError as error:
        return _said(error)
    return ""


def speaks(found: Probe, tls: ssl.SSLContext | None, left: float) -> bool:
    """Whether Kafka answers at this address when it is spoken to in this way."""
    try:
        with closing(_connect(found, min(2.0, left))) as connection:
            if tls is None:
                _api_versions(connection)
            else:
                tls.wrap_socket(connection, server_hostname=found.host).close()
    except OSError:
        return False
    return True


def _anyone() -> ssl.SSLContext:
    """TLS with whoever it is: only to tell a listener with TLS from one without. Nothing is sent over it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _connect(found: Probe, left: float) -> socket.socket:
    return socket.create_connection((found.ip, found.port), max(0.1, left))


def _said(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, socket.gaierror):
        return str(error.strerror).lower()
    return (error.strerror or str(error) or type(error).__name__).lower()


def _ends(talk: socket.socket) -> float | None:
    certificate = talk.getpeercert() if isinstance(talk, ssl.SSLSocket) else None
    ends = (certificate or {}).get("notAfter")
    return float(ssl.cert_time_to_seconds(ends)) if isinstance(ends, str) else None


# ------------------------------------------------------------------------------------------- protocol


def _api_versions(talk: socket.socket) -> tuple[dict[int, tuple[int, int]], dict[str, int]]:
    """Versions and finalized features. Brokers before 2.4 answer the old form, and have no features."""
    name = bytes([len(_CLIENT) + 1]) + _CLIENT
    body = _request(talk, API_VERSIONS, 3, b"\0" + name + name + b"\0")
    (code,) = struct.unpack_from(">h", body)
    if code == UNSUPPORTED_VERSION:
        body = _request(talk, API_VERSIONS, 0, b"")
        reader = _Reader(body, 0)
        code, count = reader.take(">hi")
        entries = [reader.take(">hhh") for _ in range(min(count, len(body)))]
        return {key: (least, most) for key, least, most in entries}, {}
    return _flexible(body)


def _flexible(body: bytes) -> tuple[dict[int, tuple[int, int]], dict[str, int]]:
    reader = _Reader(body, 2)
    apis = {}
    for _ in range(reader.count()):
        key, least, most = reader.take(">hhh")
        apis[key] = (least, most)
        reader.skip_tags()
    reader.take(">i")  # throttle time
    features: dict[str, int] = {}
    for _ in range(reader.varint()):
        tag, size = reader.varint(), reader.varint()
        end = reader.at + size
        if tag == 2:  # finalized features
            for _ in range(reader.count()):
                name = reader.text()
                (most, _least) = reader.take(">hh")
                reader.skip_tags()
                features[name] = most
        reader.at = end
    return apis, features


def _login(talk: socket.socket, found: Probe, mechanism: str | None) -> None:
    if mechanism is None:
        least, _ = found.apis.get(METADATA, (1, 1))
        version = min(8, max(1, least))
        # No topic: an empty list, since version 1. Later versions have flags behind it.
        flags = b"" if version < 4 else b"\0" if version < 8 else b"\0\0\0"
        _request(talk, METADATA, version, struct.pack(">i", 0) + flags)
        return
    name = mechanism.encode()
    body = _request(talk, SASL_HANDSHAKE, 1, struct.pack(">h", len(name)) + name)
    reader = _Reader(body, 0)
    code, count = reader.take(">hi")
    listed = []
    for _ in range(min(count, len(body))):
        (size,) = reader.take(">h")
        listed.append(reader.bytes(max(0, size)).decode("ascii", "replace"))
    found.mechanisms = tuple(listed)
    if code == ILLEGAL_SASL_STATE:
        found.fail(Step.LOGIN, "it asks for no login", Mistake.NO_LOGIN)
    elif code:
        found.fail(Step.LOGIN, f"it does not take {mechanism}", Mistake.MECHANISM)


def _request(talk: socket.socket, key: int, version: int, body: bytes) -> bytes:
    """Send one request and return the answer's body. Raises OSError."""
    header = struct.pack(">hhih", key, version, key, len(_CLIENT)) + _CLIENT
    talk.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
    start = _exactly(talk, 8)
    size, correlation = struct.unpack(">ii", start)
    if correlation != key or not 4 <= size <= LONGEST_ANSWER:
        raise _StrangeError(start)
    answer = _exactly(talk, size - 4)
    if len(answer) < 2:
        raise _StrangeError(answer)
    return answer


def _exactly(talk: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = talk.recv(size - len(received))
        if not more:
            raise _ClosedError("it closed the connection") if not received else _StrangeError(received)
        received += more
    return received


class _Reader:
    """Reads Kafka's compact encoding. What does not fit is an OSError, never another one."""

    def __init__(self, body: bytes, at: int) -> None:
        self.body = body
        self.at = at

    def take(self, layout: str) -> tuple[int, ...]:
        try:
            values = struct.unpack_from(layout, self.body, self.at)
        except struct.error:
            raise _StrangeError(self.body[:8]) from None
        self.at += struct.calcsize(layout)
        return values

    def varint(self) -> int:
        value = shift = 0
        while shift <= 28:
            (byte,) = self.take(">B")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise _StrangeError(self.body[:8])

    def count(self) -> int:
        """Length of a compact array, of at most as many items as bytes are left."""
        return max(0, min(self.varint() - 1, len(self.body) - self.at))

    def text(self) -> str:
        return self.bytes(max(0, self.varint() - 1)).decode("utf-8", "replace")

    def bytes(self, size: int) -> bytes:
        if size > len(self.body) - self.at:
            raise _StrangeError(self.body[:8])
        self.at += size
        return self.body[self.at - size : self.at]

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.at += self.varint()
