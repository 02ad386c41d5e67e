"""One dead letter as a text that a person edits, and what they made of it. Pure.

What was not changed stays byte for byte: a value that is UTF-8 stands there as it is, any other in base64,
and only what differs from what was written is read. Called by ``streamloop dlq replay --edit``.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Final

from streamloop.dlq.targets import Edit
from streamloop.errors import ConfigurationError
from streamloop.kafka.headers import is_ours, is_writable_name, user_headers

if TYPE_CHECKING:
    from collections.abc import Container

    from streamloop.dlq.letter import DeadLetter
    from streamloop.kafka.headers import RawHeaders

_VALUE: Final = b"=== value: "
_KINDS: Final = (b"text", b"base64", b"null")
_HELP: Final = """\
# {place}: change its value or its headers; the key stays. Lines with # up to the value are not read.
# A header is one line of JSON: {{"name": .., "value": ..}}, with "base64" instead of "value" for bytes.
# The value follows its line to the end of the file, less one line end: text, base64, or null (nothing).
# Without a change nothing is replayed.
"""


def document_of(letter: DeadLetter) -> bytes:
    """The text to edit."""
    lines = [_HELP.format(place=letter.place).encode()]
    for name, value in user_headers(letter.headers):
        lines.append(_header_line(name, value) + b"\n")
    kind, body = _body(letter.value)
    return b"".join([*lines, _VALUE, kind, b"\n", body, b"\n"])


def edit_of(letter: DeadLetter, document: bytes | None) -> Edit | None:
    """What the person made of it; None when nothing was changed. Raises ConfigurationError for a mistake."""
    if document is None or document == document_of(letter):
        return None
    head, mark, rest = _split(document)
    if not mark:
        raise ConfigurationError(f"The line {_VALUE.decode()}.. is missing: nothing was replayed.")
    kind, _, body = rest.partition(b"\n")
    value = letter.value
    if (kind.strip(), body.removesuffix(b"\n")) != _body(letter.value):
        value = _value(kind.strip(), body.removesuffix(b"\n"))
    before = user_headers(letter.headers)
    headers = _headers(head, {name for name, _ in before})
    if value == letter.value and headers == before:
        return None
    return Edit(value, headers, letter)


def _split(document: bytes) -> tuple[bytes, bytes, bytes]:
    if document.startswith(_VALUE):
        return b"", _VALUE, document.removeprefix(_VALUE)
    return document.partition(b"\n" + _VALUE)


def _body(value: bytes | None) -> tuple[bytes, bytes]:
    if value is None:
        return b"null", b""
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return b"base64", base64.encodebytes(value).rstrip(b"\n")
    # Bytes that an editor may not keep: a null, a carriage return, or any other control character.
    if any(byte < 0x20 and byte not in b"\t\n" for byte in value):
        return b"base64", base64.encodebytes(value).rstrip(b"\n")
    return b"text", value


def _value(kind: bytes, body: bytes) -> bytes | None:
    if kind == b"null":
        return None
    if kind == b"text":
        return body
    if kind == b"base64":
        try:
            return base64.b64decode(b"".join(body.split()), validate=True)
        except binascii.Error:
            raise ConfigurationError("The value is no base64: nothing was replayed.") from None
    raise ConfigurationError(
        f"The value is of the kind {kind[:20]!r}, and can be {', '.join(k.decode() for k in _KINDS)}: "
        "nothing was replayed."
    )


def _header_line(name: str, value: bytes | None) -> bytes:
    if value is None:
        found: dict[str, str | None] = {"name": name, "value": None}
    else:
        try:
            found = {"name": name, "value": value.decode("utf-8")}
        except UnicodeDecodeError:
            found = {"name": name, "base64": base64.b64encode(value).decode()}
    return json.dumps(found).encode()


def _headers(head: bytes, there: Container[str]) -> RawHeaders:
    found: RawHeaders = []
    for line in head.split(b"\n"):
        text = line.strip()
        if not text or text.startswith(b"#"):
            continue
        problem = ConfigurationError(
            f"The header {text[:80].decode('utf-8', 'replace')!r} can't be read: nothing was replayed."
        )
        try:
            header = json.loads(text)
            name = header["name"]
            raw = header["base64"] if "base64" in header else header["value"]
            value = None if raw is None else base64.b64decode(raw) if "base64" in header else raw.encode()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise problem from None
        if not isinstance(name, str) or not name or not (name in there or is_writable_name(name)):
            raise problem
        if is_ours(name):
            raise ConfigurationError(
                f"The header {name} is streamloop's own: give it another name. Nothing was replayed."
            )
        found.append((name, value))
    return found
