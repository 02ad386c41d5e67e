"""A WSGI application with a handful of paths: routes, bounded bodies, JSON answers, errors in sentences.

It knows nothing of what it serves. An error of a handler of ours is a 500 without details, logged. Called by
waitress's threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qsl

import orjson

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

log = logging.getLogger("streamloop.ops")

JSON: Final = "application/json; charset=utf-8"
LONGEST_BODY: Final = 12 * 1024
MOST_PARAMETERS: Final = 20


@dataclass(frozen=True, slots=True)
class Request:
    """What is used of a request.

    ``headers``: by lower-case name. ``peer``: the address it came from. ``query``: each name's first value.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    peer: str
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a body, and headers beyond its type."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


class RefusedError(Exception):
    """A request that gets an error as its answer. ``sentence`` says what to do."""

    def __init__(self, status: int, sentence: str, *headers: tuple[str, str]) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = headers


Handler: TypeAlias = Callable[[Request], Answer]


def answer_json(value: Any, status: int = 200) -> Answer:
    """This value as JSON."""
    return Answer(status, orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE))


@dataclass(slots=True)
class Application:
    """Routes: by path, then by method. ``check`` sees each request first, and may refuse it."""

    routes: Mapping[str, Mapping[str, Handler]]
    check: Callable[[Request], None] = field(default=lambda _request: None)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method = str(environ.get("REQUEST_METHOD", ""))
        try:
            answer = self._answer(method, environ)
        except RefusedError as error:
            body = orjson.dumps({"error": error.sentence}, option=orjson.OPT_APPEND_NEWLINE)
            answer = Answer(error.status, body, headers=error.headers)
        except Exception:
            log.exception("an answer could not be made", extra={"kind": "ops"})
            answer = Answer(500, b'{"error": "internal error: see the log"}\n')
        headers = [
            ("Content-Type", answer.content_type),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            *answer.headers,
        ]
        if method != "HEAD":
            headers.append(("Content-Length", str(len(answer.body))))
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", headers)
        return [] if method == "HEAD" else [answer.body]

    def _answer(self, method: str, environ: WSGIEnvironment) -> Answer:
        path = str(environ.get("PATH_INFO", ""))
        headers = {
            name[5:].replace("_", "-").lower(): str(value)
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        headers["content-type"] = str(environ.get("CONTENT_TYPE", ""))
        peer = str(environ.get("REMOTE_ADDR", ""))
        request = Request(method, path, headers, _body(environ), peer, _query(environ))
        self.check(request)
        if path == "/" and path not in self.routes:
            return answer_json({"paths": sorted(self.routes)})
        methods = self.routes.get(path)
        if methods is None:
            raise RefusedError(404, f"there is nothing here: the paths are {', '.join(sorted(self.routes))}")
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = ", ".join(sorted({*methods, *(("HEAD",) if "GET" in methods else ())}))
            raise RefusedError(405, f"{path} takes {allowed}", ("Allow", allowed))
        return handler(request)


def _query(environ: WSGIEnvironment) -> dict[str, str]:
    given = str(environ.get("QUERY_STRING", ""))
    if not given:
        return {}
    try:
        pairs = parse_qsl(given, keep_blank_values=True, errors="strict", max_num_fields=MOST_PARAMETERS)
    except ValueError:
        raise RefusedError(400, "the part of the address after the question mark can't be read") from None
    return dict(reversed(pairs))


def _body(environ: WSGIEnvironment) -> bytes:
    try:
        length = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        raise RefusedError(400, "Content-Length is no number") from None
    if length > LONGEST_BODY:
        raise RefusedError(413, f"the body is larger than {LONGEST_BODY} bytes")
    body: bytes = environ["wsgi.input"].read(LONGEST_BODY + 1) if length else b""
    return body


def json_object(request: Request, known: Mapping[str, type]) -> dict[str, Any]:
    """The body, a JSON object of these fields; an empty body is an empty object. Raises RefusedError."""
    if not request.body.strip():
        return {}
    kind = request.headers["content-type"].partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(415, "send the body as Content-Type: application/json")
    try:
        value = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, f"the body is no JSON: {error}") from None
    hint = f"send a JSON object with {', '.join(known)}, or no body"
    if not isinstance(value, dict):
        raise RefusedError(400, hint)
    for name, content in value.items():
        if name not in known:
            raise RefusedError(400, f"the field {name[:40]!r} is unknown: {hint}")
        if content is not None and type(content) is not known[name]:
            raise RefusedError(400, f"the field {name} is no {known[name].__name__}: {hint}")
    return value
