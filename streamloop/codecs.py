"""From a record's value to the handler's argument, and from what a handler publishes to bytes.

The decoder of a consumer is built once, when it is declared, from the annotation of the handler's first
parameter (``codec_for``); what can't be decoded at all is found there and not at the first message. Decoding
is a stage of its own: whatever goes wrong in it is a DecodeError, which is permanent, except what says
nothing about the record (an outcome or an OSError of a codec that talks to a registry, a MemoryError). Errors
never quote the whole payload.

Called by the declaration of a consumer, by the runners for each message, and by ``Message.publish``.
"""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol, Union, get_args, get_origin, runtime_checkable

import orjson
from pydantic import BaseModel, ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from streamloop.errors import ConfigurationError, DecodeError, EncodeError
from streamloop.outcomes import Outcome

REASON_CHARACTERS: Final = 200
_QUOTED_PAYLOAD: Final = 8  # a payload shorter than this may well be a word of the reason itself


@runtime_checkable
class Codec(Protocol):
    """Turns bytes into a value and back. Both are called from several threads. Null values never reach it.

    An exception from ``decode`` means that the record is undecodable, for good. When it is not the record's
    fault (a schema registry is down), raise ``Unavailable`` or let the OSError through: the record is tried
    again.
    """

    def decode(self, data: bytes, /) -> object: ...

    def encode(self, value: object, /) -> bytes | None: ...


class JsonCodec:
    """JSON by orjson.

    Dataclasses, pydantic models, datetime, UUID, enums, sets and Decimal can be encoded.
    """

    def decode(self, data: bytes, /) -> object:
        return orjson.loads(data)

    def encode(self, value: object, /) -> bytes:
        if isinstance(value, BaseModel):
            return value.model_dump_json().encode()
        return orjson.dumps(value, to_jsonable_python, orjson.OPT_NON_STR_KEYS)


class MsgpackCodec:
    """MessagePack. Raises ConfigurationError when the package is not installed (the extra ``msgpack``)."""

    def __init__(self) -> None:
        try:
            self._msgpack = importlib.import_module("msgpack")
        except ImportError:
            raise ConfigurationError(
                "codec='msgpack' needs the msgpack package: install it with pip install 'streamloop[msgpack]'"
            ) from None

    def decode(self, data: bytes, /) -> object:
        # Timestamps become aware datetimes; keys may be numbers, as MessagePack allows.
        return self._msgpack.unpackb(data, timestamp=3, strict_map_key=False)

    def encode(self, value: object, /) -> bytes:
        packed = self._msgpack.packb(value, datetime=True, default=to_jsonable_python)
        assert isinstance(packed, bytes)
        return packed


_NAMED: Final[dict[str, Callable[[], Codec]]] = {"json": JsonCodec, "msgpack": MsgpackCodec}


@dataclass(frozen=True, slots=True)
class Decoder:
    """What a runner calls for each value: ``decode(value)`` returns the argument or raises DecodeError.

    ``is_raw``: a value that is not null is the argument as it is, so that the call can be left out.
    """

    decode: Callable[[bytes | None], object]
    is_raw: bool = False


def codec_for(
    annotation: object, codec: str | Codec | None = None, *, parameter: str = "the handler's first parameter"
) -> Decoder:
    """The decoder for values of a handler whose first parameter is annotated with ``annotation``.

    Without ``codec``: no annotation, Any, object and bytes get the raw bytes, str gets UTF-8 text, anything
    else is JSON (dict and list as they come; dataclasses, pydantic models, TypedDicts and whatever pydantic
    knows are validated). ``codec``: 'json', 'msgpack' or a Codec; then every annotation but Any, object and
    none is validated against what it decodes to. A null value is a DecodeError unless the annotation allows
    None (Any and object do).

    Raises ConfigurationError, naming ``parameter``, for an annotation or a codec that can't be used.
    """
    if isinstance(annotation, str):
        raise ConfigurationError(
            f"the annotation {_short(annotation)!r} of {parameter} can't be resolved: define or import that "
            "name in the handler's module, outside of TYPE_CHECKING"
        )
    chosen = _codec(codec)
    wanted, allows_null = _without_none(_resolved(annotation))
    allows_null = allows_null or wanted in (Any, object)
    expected = _name(annotation)
    if chosen is None:
        convert, is_raw = _by_annotation(annotation, wanted, expected, parameter)
    else:
        convert, is_raw = _by_codec(annotation, wanted, chosen, parameter), False

    def decode(data: bytes | None) -> object:
        if data is None:
            if allows_null:
                return None
            raise DecodeError(
                f"the value is null (a tombstone) and {expected} does not allow it: annotate {parameter} "
                "with '| None' to take nulls"
            )
        try:
            return convert(data)
        except (MemoryError, OSError, Outcome, DecodeError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever is raised here, the record is undecodable
            # from None: the original holds the payload and would print parts of it in logs.
            raise DecodeError(_reason(error, expected, data)) from None

    return Decoder(decode, is_raw)


def encode(value: object, codec: str | Codec | None = None) -> bytes | None:
    """The bytes to publish for ``value``. None stays None (a tombstone) and bytes stay as they are.

    Without ``codec`` a str is UTF-8 and anything else is JSON (NaN becomes null). Raises EncodeError, naming
    the type, for what can't be encoded, and ConfigurationError for an unknown ``codec``.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    chosen = _codec(codec)
    try:
        if chosen is not None:
            return chosen.encode(value)
        if isinstance(value, str):
            return value.encode()
        return _JSON.encode(value)
    except (MemoryError, OSError, Outcome, EncodeError):
        raise
    except Exception as error:
        raise EncodeError(
            f"a value of type {_name(type(value))} can't be published: {_short(str(error))}; "
            "give bytes, str, None, or what JSON or the named codec can hold"
        ) from error


_JSON: Final = JsonCodec()

_Convert = Callable[[bytes], object]


def _by_annotation(
    annotation: object, wanted: object, expected: str, parameter: str
) -> tuple[_Convert, bool]:
    """Without a codec the annotation decides. Also: whether the bytes are the argument as they are."""
    if wanted in (inspect.Parameter.empty, Any, object, bytes):
        constrained = wanted is bytes and _is_constrained(annotation)
        return (_adapter(annotation, parameter).validate_python, False) if constrained else (_same, True)
    if wanted is str:
        if not _is_constrained(annotation):
            return _utf8, False
        validate = _adapter(annotation, parameter).validate_python
        return (lambda data: validate(data.decode("utf-8"))), False
    if wanted in (dict, list):
        return _json_of((dict if wanted is dict else list, types.NoneType), annotation, expected), False
    if any(_resolved(member) in (bytes, str) for member in _members(wanted)):
        raise ConfigurationError(
            f"{parameter} is annotated with {expected}: bytes or str beside other types can't be told apart; "
            "choose one, or name a codec (codec='json')"
        )
    return _adapter(annotation, parameter).validate_json, False


def _by_codec(annotation: object, wanted: object, codec: Codec, parameter: str) -> _Convert:
    if wanted in (inspect.Parameter.empty, Any, object):
        return codec.decode
    if type(codec) is JsonCodec:
        return _adapter(annotation, parameter).validate_json
    validate = _adapter(annotation, parameter, any_class=type(codec) is not MsgpackCodec).validate_python
    decode = codec.decode
    return lambda data: validate(decode(data))


def _same(data: bytes) -> object:
    return data


def _utf8(data: bytes) -> object:
    return data.decode("utf-8")


def _json_of(kinds: tuple[type, ...], annotation: object, expected: str) -> _Convert:
    if _without_none(_resolved(annotation))[1] is False:
        kinds = kinds[:1]
    loads = orjson.loads

    def convert(data: bytes) -> object:
        value = loads(data)
        if type(value) in kinds:
            return value
        raise DecodeError(f"can't be decoded as {expected}: the JSON value is of type {type(value).__name__}")

    return convert


def _adapter(annotation: Any, parameter: str, *, any_class: bool = False) -> TypeAdapter[Any]:
    try:
        try:
            adapter = TypeAdapter[Any](annotation)
        except PydanticSchemaGenerationError:
            if not any_class:
                raise
            # What a codec of the user's own makes may be of any class: then only isinstance is checked.
            adapter = TypeAdapter[Any](annotation, config=ConfigDict(arbitrary_types_allowed=True))
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True)
    except Exception as error:
        raise ConfigurationError(
            f"{parameter} is annotated with {_name(annotation)}, which can't be decoded: "
            f"{_short(str(error).partition(chr(10))[0])}. Use bytes, str, dict, list, a dataclass, "
            "a pydantic model or a TypedDict, or give a codec that makes it"
        ) from error
    return adapter


def _codec(codec: str | Codec | None) -> Codec | None:
    if codec is None:
        return None
    if isinstance(codec, str):
        make = _NAMED.get(codec.lower())
        if make is None:
            raise ConfigurationError(
                f"codec={_short(codec)!r} is unknown: use {' or '.join(map(repr, _NAMED))}, "
                "or give an object with decode and encode"
            )
        return make()
    if isinstance(codec, type) or not isinstance(codec, Codec):
        what = f"the class {codec.__name__}" if isinstance(codec, type) else f"a {type(codec).__name__}"
        raise ConfigurationError(
            f"codec is {what}: give 'json', 'msgpack', or an object (an instance) with decode and encode"
        )
    return codec


def _resolved(annotation: object) -> object:
    """``annotation`` without Annotated, NewType and ``type`` aliases."""
    for _ in range(100):
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType" and hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            break
    return annotation


def _members(annotation: object) -> tuple[object, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()


def _without_none(annotation: object) -> tuple[object, bool]:
    """``annotation`` without None, and whether it allowed None."""
    if annotation is None or annotation is types.NoneType:
        return annotation, True
    members = _members(annotation)
    rest = [member for member in members if member is not types.NoneType]
    if len(rest) == len(members):
        return annotation, False
    return (_resolved(rest[0]) if len(rest) == 1 else Union[tuple(rest)]), True  # noqa: UP007 - made at run time


def _is_constrained(annotation: object) -> bool:
    """Whether something in the annotation has to be checked by pydantic (Annotated[str, MaxLen(5)])."""
    if get_origin(annotation) is Annotated:
        return True
    return any(_is_constrained(member) for member in _members(annotation))


def _reason(error: Exception, expected: str, data: bytes) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        text = f"{where + ': ' if where else ''}{first['msg']}{more}"
    elif isinstance(error, UnicodeDecodeError):
        text = f"not UTF-8 at byte {error.start}"
    elif isinstance(error, orjson.JSONDecodeError):
        text = f"not JSON, {error.msg} at byte {error.pos}"
    else:
        try:
            text = f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001 - an error that can't be printed
            text = type(error).__name__
    payload = data.decode("utf-8", "replace")
    if len(payload) >= _QUOTED_PAYLOAD:
        text = text.replace(payload, "...")
    return f"can't be decoded as {expected}: {text}"[:REASON_CHARACTERS]


def _name(annotation: object) -> str:
    if annotation is inspect.Parameter.empty:
        return "bytes"
    name = annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
    return _short(name)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
