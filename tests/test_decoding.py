"""From a record's value to the handler's argument, and what becomes of values that can't be decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]
import pytest
from pydantic import BaseModel

from streamloop import Unavailable
from streamloop.testing import Harness, Outcome
from tests.loops import billing

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Order:
    id: int
    note: str | None = None


class Payment(BaseModel):
    id: int
    amount: float


def taking(annotation: Any) -> tuple[Callable[..., Any], list[Any]]:
    """A handler whose argument is annotated so, and what it is given."""
    seen: list[Any] = []

    async def handle(value: Any) -> None:
        seen.append(value)

    handle.__annotations__["value"] = annotation
    return handle, seen


@pytest.mark.parametrize(
    ("annotation", "codec", "sent", "expected"),
    [
        (bytes, None, b"\xff\x00", b"\xff\x00"),
        (str, None, "grüezi", "grüezi"),
        (dict, None, {"a": [1]}, {"a": [1]}),
        (list, None, [1, "a"], [1, "a"]),
        (dict[str, int], None, {"a": 1}, {"a": 1}),
        (Order, None, {"id": 1}, Order(1)),
        (Payment, None, {"id": 1, "amount": 2.5}, Payment(id=1, amount=2.5)),
        (list[Order], "json", [{"id": 1}, {"id": 2, "note": "x"}], [Order(1), Order(2, "x")]),
        (Order, "msgpack", msgpack.packb({"id": 1}), Order(1)),
        (Any, "msgpack", msgpack.packb([1, b"raw"]), [1, b"raw"]),
        (Order | None, None, {"id": 1}, Order(1)),
        (Order | None, None, None, None),
        (bytes | None, None, None, None),
        (Any, None, None, None),
    ],
)
def test_a_handler_is_given_what_its_annotation_says(
    annotation: Any, codec: str | None, sent: object, expected: object
) -> None:
    handle, seen = taking(annotation)
    loop = billing(handle, batch=False, codec=codec)
    with Harness(loop) as kafka:
        kafka.send("orders", sent)
        kafka.run()
        assert kafka.dead_letters() == []
    assert seen == [expected]


@pytest.mark.parametrize(
    ("annotation", "sent", "said"),
    [
        (str, b"\xff", "not UTF-8"),
        (dict, [1], "of type list"),
        (Order, {"id": "x"}, "id: Input should be a valid integer"),
        (Payment, {"id": 1}, "amount: Field required"),
        (bytes, None, "the value is null"),
        (Order, None, "annotate the first argument of handler charge with '| None'"),
    ],
)
def test_D7_what_does_not_fit_the_annotation_says_why_in_the_dead_letter(
    annotation: Any, sent: object, said: str
) -> None:
    handle, seen = taking(annotation)
    with Harness(billing(handle)) as kafka:
        kafka.send("orders", sent)
        kafka.run()
        [dead] = kafka.dead_letters()
        assert said in dead.error_message
    assert seen == []


def test_a_codec_whose_registry_is_down_is_tried_again_and_no_dead_letter() -> None:
    class Registry:
        calls = 0

        def decode(self, data: bytes, /) -> object:
            self.calls += 1
            if self.calls < 3:
                raise Unavailable("registry")
            return data.decode()

        def encode(self, value: object, /) -> bytes:
            return str(value).encode()

    seen: list[object] = []

    async def handle(value: Any) -> None:
        seen.append(value)

    with Harness(billing(handle, codec=Registry(), in_place_attempts=1, retry_topics=())) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert kafka.outcome(sent).outcome is Outcome.ACKED
        assert len(kafka.outcome(sent).attempts) == 3
    assert seen == ["x"]
