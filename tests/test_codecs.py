"""How values are decoded for handlers and encoded for publishing."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, NewType, Optional, Union

import msgpack  # type: ignore[import-untyped]
import pytest
from annotated_types import MaxLen
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator
from typing_extensions import TypedDict

from streamloop.codecs import Codec, JsonCodec, MsgpackCodec, codec_for, encode
from streamloop.engine.retry import ErrorRules, Kind, classify
from streamloop.errors import ConfigurationError, DecodeError, EncodeError
from streamloop.outcomes import Unavailable


@dataclass
class Order:
    id: int
    lines: list[str] = field(default_factory=list)


class Payment(BaseModel):
    order: Order
    amount: Decimal

    @field_validator("amount")
    @classmethod
    def positive(cls, amount: Decimal) -> Decimal:
        if amount <= 0:
            raise ValueError(f"{amount} is not above 0")
        return amount


class Row(TypedDict):
    id: int


class Colour(enum.Enum):
    RED = "red"


class NotDecodable:
    def __init__(self, x: int) -> None:
        self.x = x


OrderId = NewType("OrderId", str)
NOTHING = inspect.Parameter.empty


@pytest.mark.parametrize(
    ("annotation", "data", "expected"),
    [
        (NOTHING, b"\xff", b"\xff"),
        (bytes, b"", b""),
        (Any, b"\xff", b"\xff"),
        (object, b"{}", b"{}"),
        (bytes | None, b"x", b"x"),
        (str, "h\u20ac".encode(), "h\u20ac"),
        (str | None, b"null", "null"),
        (OrderId, b"o-1", "o-1"),
        (Annotated[str, MaxLen(3)], b"abc", "abc"),
        (Annotated[bytes, MaxLen(3)], b"abc", b"abc"),
        (dict, b'{"a": [1, null]}', {"a": [1, None]}),
        (list, b"[1, 2]", [1, 2]),
        (dict | None, b"null", None),
        (dict[str, int], b'{"a": 1}', {"a": 1}),
        (list[Order], b'[{"id": 1}]', [Order(1)]),
        (Order, b'{"id": 1, "lines": ["x"], "more": 2}', Order(1, ["x"])),
        (Optional[Order], b'{"id": 1}', Order(1)),  # noqa: UP045 - the old spelling works too
        (Union[Order, list[Order]], b'[{"id": 1}]', [Order(1)]),  # noqa: UP007
        (Payment, b'{"order": {"id": 1}, "amount": "2.50"}', Payment(order=Order(1), amount=Decimal("2.50"))),
        (Row, b'{"id": 3}', {"id": 3}),
        (int, b"5", 5),
        (Colour, b'"red"', Colour.RED),
    ],
)
def test_the_annotation_decides_how_a_value_is_decoded(
    annotation: Any, data: bytes, expected: object
) -> None:
    decoded = codec_for(annotation).decode(data)
    assert decoded == expected
    assert type(decoded) is type(expected)


def test_raw_bytes_need_no_call_and_nothing_else_is_raw() -> None:
    assert all(codec_for(each).is_raw for each in (NOTHING, bytes, bytes | None, Any, object))
    assert not any(codec_for(each).is_raw for each in (str, dict, Order, Annotated[bytes, MaxLen(3)]))
    assert not codec_for(Any, "json").is_raw
    data = b"same"
    assert codec_for(bytes).decode(data) is data


@pytest.mark.parametrize(
    "annotation", [bytes | None, str | None, dict | None, Order | None, None, Any, object]
)
@pytest.mark.parametrize("codec", [None, "json", "msgpack"])
def test_a_null_value_is_none_where_the_annotation_allows_it(annotation: Any, codec: str | None) -> None:
    assert codec_for(annotation, codec).decode(None) is None


@pytest.mark.parametrize("annotation", [NOTHING, bytes, str, dict, Order, Payment, int])
@pytest.mark.parametrize("codec", [None, "json"])
def test_D7_a_null_value_is_a_permanent_failure_where_it_does_not(annotation: Any, codec: str | None) -> None:
    with pytest.raises(DecodeError, match=r"null .*event.*\| None") as caught:
        codec_for(annotation, codec, parameter="'event' of handle()").decode(None)
    assert classify(caught.value, ErrorRules()).kind is Kind.PERMANENT


@pytest.mark.parametrize(
    ("annotation", "data", "words"),
    [
        (str, b"ok\xff", "not UTF-8 at byte 2"),
        (dict, b"{", "not JSON"),
        (dict, b"", "not JSON"),
        (dict, b"[1]", "of type list"),
        (dict, b"null", "of type NoneType"),
        (list, b'{"a": 1}', "of type dict"),
        (list | None, b"5", "of type int"),
        (dict, b"[" * 100_000, "not JSON"),
        (Order, b"{}", "id: Field required"),
        (Order, b'{"id": "x", "lines": 5}', "and 1 more"),
        (Order, b"\xff\xfe", "Order"),
        (Order, b"", "Order"),
        (Payment, b'{"order": {"id": 1}, "amount": -1}', "not above 0"),
        (Annotated[str, MaxLen(3)], b"abcd", "at most 3"),
        (Row, b'{"id": []}', "id"),
    ],
)
def test_D7_an_undecodable_value_says_what_is_wrong_in_a_short_sentence(
    annotation: Any, data: bytes, words: str
) -> None:
    with pytest.raises(DecodeError, match=words) as caught:
        codec_for(annotation).decode(data)
    assert len(str(caught.value)) <= 200
    # What it was made from holds the payload, and must not be printed along with it.
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_D7_arbitrary_bytes_decode_or_raise_a_decode_error_without_the_payload(data: bytes) -> None:
    for annotation, codec in ((str, None), (dict, None), (Order, None), (Order, "msgpack"), (Any, "msgpack")):
        reason = decode_error(annotation, codec, data)
        assert len(reason) <= 200
        assert len(data) < 8 or data.decode("utf-8", "replace") not in reason


def decode_error(annotation: Any, codec: str | None, data: bytes) -> str:
    try:
        codec_for(annotation, codec).decode(data)
    except DecodeError as error:
        return str(error)
    return ""


def test_D7_a_validator_that_quotes_the_payload_is_not_repeated() -> None:
    class Secret(BaseModel):
        card: str

        @field_validator("card")
        @classmethod
        def refuse(cls, card: str) -> str:
            raise ValueError(f'{{"card":"{card}"}} is refused')

    with pytest.raises(DecodeError, match="is refused") as caught:
        codec_for(Secret).decode(b'{"card":"4111-1111-1111"}')
    assert "4111" not in str(caught.value)


@pytest.mark.parametrize("codec", ["msgpack", MsgpackCodec()])
def test_msgpack_is_decoded_and_validated(codec: Any) -> None:
    assert codec_for(Order, codec).decode(msgpack.packb({"id": 1, "lines": ["x"]})) == Order(1, ["x"])
    assert codec_for(Any, codec).decode(msgpack.packb({1: b"\xff"})) == {1: b"\xff"}
    assert codec_for(NOTHING, codec).decode(msgpack.packb([1])) == [1]
    assert codec_for(Order | None, codec).decode(msgpack.packb(None)) is None
    moment = datetime(2027, 1, 15, 8, tzinfo=UTC)
    assert codec_for(datetime, codec).decode(msgpack.packb(moment, datetime=True)) == moment
    for bad in (
        b"",
        b"\xc1",
        msgpack.packb({"id": 1}) + b"\x00",
        msgpack.packb({"id": "x"}),
        b"\x91" * 5_000,
    ):
        with pytest.raises(DecodeError, match="Order"):
            codec_for(Order, codec).decode(bad)


def test_msgpack_without_the_package_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigurationError, match=r"streamloop\[msgpack\]"):
        codec_for(dict, "msgpack")


def test_json_can_be_named_for_what_would_be_text_or_raw_otherwise() -> None:
    assert codec_for(str, "json").decode(b'"text"') == "text"
    assert codec_for(Any, "JSON").decode(b'{"a": 1}') == {"a": 1}
    assert codec_for(Union[str, int], JsonCodec()).decode(b"5") == 5  # noqa: UP007


class Registry:
    """A codec of the user's own, which asks a schema registry."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def decode(self, data: bytes, /) -> object:
        if self.error is not None:
            raise self.error
        return NotDecodable(len(data))

    def encode(self, value: object, /) -> bytes | None:
        if self.error is not None:
            raise self.error
        return f"{value}".encode()


def test_a_codec_of_the_users_own_may_make_any_class() -> None:
    assert isinstance(Registry(), Codec)
    for annotation in (NotDecodable, NotDecodable | None, Any, NOTHING):
        decoded = codec_for(annotation, Registry()).decode(b"abc")
        assert isinstance(decoded, NotDecodable)
        assert decoded.x == 3
    with pytest.raises(DecodeError, match="Colour"):
        codec_for(Colour, Registry()).decode(b"abc")


@pytest.mark.parametrize(
    "error", [ConnectionError("registry"), TimeoutError(), Unavailable("registry"), MemoryError()]
)
def test_what_is_not_the_records_fault_is_not_a_decode_error(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        codec_for(Any, Registry(error)).decode(b"abc")
    assert classify(caught.value, ErrorRules()).kind is not Kind.PERMANENT


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("error", [KeyError("x" * 1_000), RecursionError("deep"), Mute()])
def test_D7_anything_else_that_a_codec_raises_is_a_decode_error(error: Exception) -> None:
    with pytest.raises(DecodeError, match=type(error).__name__) as caught:
        codec_for(Any, Registry(error)).decode(b"abc")
    assert len(str(caught.value)) <= 200


@pytest.mark.parametrize(
    ("annotation", "codec", "words"),
    [
        (NotDecodable, None, "'event' of handle.*NotDecodable"),
        (list[NotDecodable], None, "'event' of handle"),
        (NotDecodable, "msgpack", "'event' of handle"),
        (bytes | str, None, "told apart"),
        (str | int | None, None, "told apart"),
        ("Missing", None, "'Missing'.*can't be resolved"),
        (dict, "avro", "codec='avro' is unknown.*'json' or 'msgpack'"),
        (dict, JsonCodec, "the class JsonCodec.*instance"),
        (dict, 5, "a int"),
        (5, None, "'event' of handle"),
    ],
)
def test_what_can_never_be_decoded_is_refused_at_the_declaration_naming_it(
    annotation: Any, codec: Any, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        codec_for(annotation, codec, parameter="'event' of handle()")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (b"\xff", b"\xff"),
        (bytearray(b"a"), b"a"),
        (memoryview(b"ab")[1:], b"b"),
        ("h\u20ac", "h\u20ac".encode()),
        ("", b""),
        ({"a": [1, None, True]}, b'{"a":[1,null,true]}'),
        ({1: "x"}, b'{"1":"x"}'),
        ([1, 2], b"[1,2]"),
        (Order(1, ["x"]), b'{"id":1,"lines":["x"]}'),
        (Payment(order=Order(1), amount=Decimal("2.50")), b'{"order":{"id":1,"lines":[]},"amount":"2.50"}'),
        ([Payment(order=Order(1), amount=Decimal(2))], b'[{"order":{"id":1,"lines":[]},"amount":"2"}]'),
        ({"at": datetime(2027, 1, 15, tzinfo=UTC)}, b'{"at":"2027-01-15T00:00:00+00:00"}'),
        (uuid.UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
        (Colour.RED, b'"red"'),
        (5, b"5"),
        (False, b"false"),
    ],
)
def test_what_a_handler_publishes_is_encoded_by_its_type(value: object, expected: bytes | None) -> None:
    assert encode(value) == expected


@pytest.mark.parametrize(
    ("value", "codec", "words"),
    [
        (NotDecodable(1), None, "type NotDecodable"),
        ({"a": NotDecodable(1)}, None, "type dict"),
        ("\ud800", None, "type str"),
        (2**70, None, "type int"),
        (NotDecodable(1), "msgpack", "type NotDecodable"),
        ({}, Registry(KeyError("no such schema")), "no such schema"),
    ],
)
def test_what_cannot_be_encoded_is_named_by_its_type(value: object, codec: Any, words: str) -> None:
    with pytest.raises(EncodeError, match=words):
        encode(value, codec)


def test_a_named_codec_encodes_all_but_bytes_and_null() -> None:
    assert msgpack.unpackb(encode(Order(1, ["x"]), "msgpack") or b"") == {"id": 1, "lines": ["x"]}
    assert encode(b"raw", "msgpack") == b"raw"
    assert encode(None, "msgpack") is None
    assert encode("text", "json") == b'"text"'
    assert encode("text", Registry()) == b"text"
    with pytest.raises(ConfigurationError, match="avro"):
        encode({}, "avro")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_what_is_published_is_decoded_as_the_same_value(value: dict[str, object]) -> None:
    encoded = encode(value)
    assert encoded is not None
    assert codec_for(dict).decode(encoded) == value
    assert json.loads(encoded) == value
    packed = encode(value, "msgpack")
    assert codec_for(dict, "msgpack").decode(packed) == value
