"""What is wrong with a handler is said when it is declared, in a sentence that names it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from streamloop import ConfigurationError, Message, StreamLoop
from streamloop.testing import Harness, Outcome
from tests.loops import billing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    class Unresolved: ...


def declare(function: Any, *topics: str, **options: Any) -> StreamLoop[None]:
    loop: StreamLoop[None] = StreamLoop("billing")
    loop.consumer(*(topics or ("orders",)), **options)(function)
    return loop


async def handle(value: bytes) -> None:
    return


def plain(value: bytes) -> None:
    return


# ---------------------------------------------------------------------------------------- wrong handlers


async def no_argument() -> None: ...


async def three_arguments(value: bytes, message: Message, more: int) -> None: ...


async def keyword_needed(value: bytes, *, session: object) -> None: ...


async def second_is_no_message(value: bytes, session: int) -> None: ...


async def message_twice(first: Message, second: Message) -> None: ...


async def batch_of_one(value: bytes) -> None: ...


async def unresolved(order: Unresolved) -> None: ...


def generator(value: bytes) -> Iterator[None]:
    yield


async def async_generator(value: bytes) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (no_argument, {}, "takes no argument: write def no_argument(value)"),
        (three_arguments, {}, "needs 3 arguments (value, message, more)"),
        (keyword_needed, {}, "needs the keyword 'session', which streamloop can't give"),
        (second_is_no_message, {}, "its second argument 'session' is given the message"),
        (message_twice, {}, "takes the message twice"),
        (batch_of_one, {"batch": True}, "annotate it with list[...]"),
        (unresolved, {}, "the name 'Unresolved' in its annotations can't be resolved"),
        (generator, {}, "is a generator"),
        (async_generator, {}, "is a generator"),
        (handle, {"runner": "thread"}, "is async and runner='thread' is for plain functions"),
        (handle, {"runner": "process"}, "runner='process' is unknown; use 'auto', 'thread' or 'inline'"),
        (plain, {"runner": "inline", "batch": True}, "takes one message at a time"),
        (handle, {"permanent": ["ValueError"]}, "permanent lists 'ValueError'; give exception classes"),
        (handle, {"fatal": [int]}, "fatal lists <class 'int'>"),
    ],
)
def test_a_wrong_handler_is_refused_by_a_sentence_that_names_it(
    function: Callable[..., Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        declare(function, **options)
    assert said in str(caught.value)
    assert f"handler {function.__name__} ({__name__})" in str(caught.value)


@pytest.mark.parametrize(
    ("declare_wrongly", "said"),
    [
        (lambda loop: loop.consumer(handle), "write @loop.consumer('orders'), with the topic"),
        (lambda loop: loop.consumer()(handle), "names no topic"),
        (lambda loop: loop.consumer("")(handle), "a topic is a non-empty string"),
        (lambda loop: loop.consumer(5)(handle), "names the topic 5"),
        (lambda loop: loop.consumer("^orders.*")(handle), "patterns are refused, because"),
        (lambda loop: loop.consumer("orders")("text"), "decorates a function, and got 'text'"),
        (lambda loop: loop.middleware(None), "decorates a function, and got None"),
        (lambda loop: loop.on_startup(plain), "@loop.on_startup decorates an async def"),
        (lambda loop: loop.on_shutdown(plain), "@loop.on_shutdown decorates an async def"),
    ],
)
def test_a_wrong_declaration_says_what_to_write(
    declare_wrongly: Callable[[StreamLoop[None]], Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        declare_wrongly(StreamLoop("billing"))
    assert said in str(caught.value)


def test_one_topic_has_one_handler_and_one_name() -> None:
    loop = declare(handle)
    with pytest.raises(ConfigurationError, match="two handlers of this loop are named handle"):
        loop.consumer("mails")(handle)
    with pytest.raises(
        ConfigurationError, match="topic orders has two handlers in this loop, handle and other"
    ):
        loop.consumer("mails", "orders", name="other")(handle)


def test_a_loop_without_a_handler_does_not_run() -> None:
    with pytest.raises(ConfigurationError, match="this loop has no handler"):
        Harness(StreamLoop("billing")).start()


@pytest.mark.parametrize("group", [None, ""])
def test_a_loop_without_a_group_does_not_run(group: str | None) -> None:
    loop: StreamLoop[None] = StreamLoop(group)
    loop.consumer("orders")(handle)
    with pytest.raises(ConfigurationError, match="group"):
        Harness(loop).start()
    with Harness(loop, group="billing") as kafka:
        assert kafka.dead_letter_topic("orders") == "orders.billing.dlq"


def test_a_group_that_is_a_function_is_a_missing_pair_of_parentheses() -> None:
    with pytest.raises(ConfigurationError, match="the first argument is the consumer group's name"):
        StreamLoop(handle)  # type: ignore[arg-type]


async def of_sets(value: set[bytes] | str) -> None: ...


def test_an_annotation_that_can_not_be_decoded_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match="the first argument of handler of_sets"):
        Harness(declare(of_sets)).start()
    with pytest.raises(ConfigurationError, match="codec='yaml' is unknown"):
        Harness(declare(handle, codec="yaml")).start()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"in_place_attempts": 0}, "in_place_attempts"),
        ({"concurency": 5}, "concurency"),
        ({"ordering": "random"}, "ordering"),
        ({"delay": handle}, "delay is not a plain function"),
    ],
)
def test_wrong_settings_of_a_handler_name_it(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Harness(declare(handle, **options)).start()
    assert said in str(caught.value)
    assert "handle" in str(caught.value)


def test_two_roles_of_one_topic_are_refused() -> None:
    loop = declare(handle, retry_topics=(30,))
    loop.consumer("orders.billing.retry.30s", name="other")(handle)
    with pytest.raises(ConfigurationError, match=r"orders\.billing\.retry\.30s is used twice"):
        Harness(loop).start()


@pytest.mark.parametrize("is_async", [True, False])
def test_middleware_of_the_wrong_kind_names_itself_and_the_handler(is_async: bool) -> None:
    async def around(message: Message, call_next: Callable[[], Any]) -> Any:
        return await call_next()

    def around_plain(message: Message, call_next: Callable[[], Any]) -> Any:
        return call_next()

    loop = declare(handle if is_async else plain)
    loop.middleware(around_plain if is_async else around)
    name, kind = ("handle", "async def") if is_async else ("plain", "def")
    with pytest.raises(ConfigurationError, match=f"go around handler {name}: the handler is {kind}"):
        Harness(loop).start()


# ---------------------------------------------------------------------------------------- right handlers


class Callable1:
    """An object that can be called."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    async def __call__(self, value: str, message: Message) -> None:
        self.seen.append((value, message.offset))


class Service:
    def __init__(self) -> None:
        self.seen: list[object] = []

    async def method(self, value: str) -> None:
        self.seen.append(value)

    async def with_message_first(self, message: Message) -> None:
        self.seen.append(message.value)

    async def with_default(self, value: str, note: str = "default") -> None:
        self.seen.append((value, note))

    async def unannotated(self, value, message) -> None:  # type: ignore[no-untyped-def]
        self.seen.append((value, message.offset))

    async def star(self, *values: str) -> None:
        self.seen.append(values)

    def plain(self, value: str, message: Message | None = None) -> None:
        self.seen.append((value, message))

    async def prefixed(self, prefix: str, value: str) -> None:
        self.seen.append(prefix + value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("method", "x"),
        ("with_message_first", b"x"),
        ("with_default", ("x", "default")),
        ("unannotated", (b"x", 0)),
        ("star", ("x",)),
        ("plain", ("x", None)),
    ],
)
def test_methods_are_handlers_and_get_what_they_ask_for(name: str, expected: object) -> None:
    service = Service()
    with Harness(billing(getattr(service, name))) as kafka:
        kafka.send("orders", "x")
        kafka.run()
        assert [each.outcome for each in kafka.outcomes()] == [Outcome.ACKED]
    assert service.seen == [expected]


def test_partials_and_objects_that_can_be_called_are_handlers() -> None:
    service, called = Service(), Callable1()
    loop: StreamLoop[None] = StreamLoop("billing")
    loop.consumer("orders", name="partial")(functools.partial(service.prefixed, "p-"))
    loop.consumer("mails")(called)
    with Harness(loop) as kafka:
        kafka.send("orders", "x")
        kafka.send("mails", "y")
        kafka.run()
        assert {each.outcome for each in kafka.outcomes()} == {Outcome.ACKED}
    assert service.seen == ["p-x"]
    assert called.seen == [("y", 0)]


def test_the_decorated_function_stays_as_it_is() -> None:
    loop: StreamLoop[None] = StreamLoop("billing")
    assert loop.consumer("orders")(handle) is handle
    assert loop.on_startup(no_argument) is no_argument
    assert repr(loop) == "<StreamLoop billing: handle>"
