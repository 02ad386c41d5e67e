"""From a function and the keywords of @loop.consumer(..) to a handler that can be run.

Everything that can be wrong with a handler is found here, when the module is imported, and said in a sentence
that names it: not at the first message.
"""

from __future__ import annotations

import contextvars
import inspect
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from streamloop.codecs import codec_for
from streamloop.engine.retry import ErrorRules, validate_plan
from streamloop.errors import ConfigurationError
from streamloop.message import Message
from streamloop.runners.base import Handler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamloop.codecs import Codec
    from streamloop.engine.retry import Failure
    from streamloop.settings import ConsumerSettings

Middleware = Callable[[Any, Callable[[], Any]], Any]
"""``async def middleware(message, call_next)`` around coroutine handlers, ``def`` around the others."""


class RunnerKind(Enum):
    """How a handler is run. ``auto``: ``async def`` on the event loop, ``def`` in threads."""

    AUTO = "auto"
    THREAD = "thread"
    INLINE = "inline"


@dataclass(slots=True)
class Declaration:
    """One @loop.consumer(..) as it was written."""

    name: str
    topics: tuple[str, ...]
    function: Callable[..., Any]
    runner: RunnerKind
    batch: bool
    codec: str | Codec | None
    rules: ErrorRules
    delay: Callable[[int, Failure], float] | None
    settings: dict[str, object] = field(default_factory=dict)
    is_async: bool = False
    takes_message_first: bool = False
    """The first argument is the Message (or the list of them) itself."""
    wants_message: bool = False
    annotation: Any = inspect.Parameter.empty


def declare(
    function: Callable[..., Any],
    *,
    name: str | None,
    topics: Sequence[str],
    runner: str,
    batch: bool,
    codec: str | Codec | None,
    rules: ErrorRules,
    delay: Callable[[int, Failure], float] | None,
    settings: dict[str, object],
) -> Declaration:
    """Check a handler's signature and keywords.

    Raises ConfigurationError: a sentence that names the handler and what to change.
    """
    if not callable(function):
        raise ConfigurationError(
            f"@loop.consumer decorates a function, and got {function!r}: give the topics in parentheses, "
            "as in @loop.consumer('orders')"
        )
    shown = name or str(getattr(function, "__name__", type(function).__name__))
    where = f"handler {shown} ({getattr(function, '__module__', '?')})"
    if not topics:
        raise ConfigurationError(f"{where} names no topic: write @loop.consumer('orders')")
    for topic in topics:
        if not isinstance(topic, str) or not topic:
            raise ConfigurationError(f"{where} names the topic {topic!r}: a topic is a non-empty string")
    try:
        kind = RunnerKind(runner)
    except ValueError:
        raise ConfigurationError(
            f"{where}: runner={runner!r} is unknown; use 'auto', 'thread' or 'inline'"
        ) from None
    is_async = _is_async(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{where} is a generator: a handler returns once, so write it without yield")
    if is_async and kind is not RunnerKind.AUTO:
        raise ConfigurationError(
            f"{where} is async and runner={runner!r} is for plain functions: leave runner out, or write def"
        )
    if batch and kind is RunnerKind.INLINE:
        raise ConfigurationError(f"{where}: runner='inline' takes one message at a time; leave batch out")
    for option, classes in (
        ("permanent", rules.permanent),
        ("transient", rules.transient),
        ("unavailable", rules.unavailable),
        ("fatal", rules.fatal),
    ):
        for each in classes:
            if not (isinstance(each, type) and issubclass(each, BaseException)):
                raise ConfigurationError(f"{where}: {option} lists {each!r}; give exception classes")
    declaration = Declaration(
        shown, tuple(topics), function, kind, batch, codec, rules, delay, settings, is_async
    )
    _read_signature(declaration, where)
    return declaration


def _is_async(function: Callable[..., Any]) -> bool:
    inner: Any = function
    while hasattr(inner, "func") and hasattr(inner, "keywords"):  # functools.partial
        inner = inner.func
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(type(inner), "__call__", None)  # noqa: B004 - whether calling it gives a coroutine
    )


def _read_signature(declaration: Declaration, where: str) -> None:
    function = declaration.function
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{where} has no signature that can be read: wrap it in a function"
        ) from None
    hints = _hints(function, where)
    usable = [
        each
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL)
    ]
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty:
            raise ConfigurationError(
                f"{where} needs the keyword {each.name!r}, which streamloop can't give: a handler takes the "
                "value and, if it likes, the message"
            )
    if not usable:
        raise ConfigurationError(
            f"{where} takes no argument: write def {declaration.name}(value) or "
            f"def {declaration.name}(value, message)"
        )
    required = [
        each for each in usable if each.default is each.empty and each.kind is not each.VAR_POSITIONAL
    ]
    if len(required) > 2:
        raise ConfigurationError(
            f"{where} needs {len(required)} arguments ({', '.join(each.name for each in required)}): "
            "a handler takes the value and, if it likes, the message"
        )
    first = usable[0]
    annotation = hints.get(first.name, first.annotation)
    if declaration.batch or annotation == list[Message]:
        declaration.batch = True
        annotation = _element(annotation, first.name, where)
    if annotation is Message:
        declaration.takes_message_first = True
        annotation = bytes | None
    declaration.annotation = annotation
    second = usable[1] if len(usable) > 1 else None
    if second is not None:
        hint = hints.get(second.name, second.annotation)
        expected = list[Message] if declaration.batch else Message
        if hint == expected or second.default is second.empty:
            if hint not in (expected, inspect.Parameter.empty, Any) and second.name != "message":
                given = "list[Message]" if declaration.batch else "Message"
                raise ConfigurationError(
                    f"{where}: its second argument {second.name!r} is given the message and is annotated "
                    f"with {hint!r}: annotate it with {given}"
                )
            if declaration.takes_message_first:
                raise ConfigurationError(f"{where} takes the message twice: leave the second argument out")
            declaration.wants_message = True


def _element(annotation: Any, name: str, where: str) -> Any:
    if annotation is inspect.Parameter.empty or annotation is list:
        return inspect.Parameter.empty
    if typing.get_origin(annotation) is not list:
        raise ConfigurationError(
            f"{where} handles batches, and its argument {name!r} is annotated with {annotation!r}: "
            "annotate it with list[...]"
        )
    return typing.get_args(annotation)[0]


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    inner: Any = function
    while hasattr(inner, "func") and hasattr(inner, "keywords"):
        inner = inner.func
    if not inspect.isroutine(inner):
        inner = getattr(type(inner), "__call__", inner)  # noqa: B004 - an object that can be called
    try:
        return typing.get_type_hints(inner, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{where}: the name {error.name!r} in its annotations can't be resolved; define or import it in "
            "the module, outside of TYPE_CHECKING"
        ) from None
    except TypeError:
        return {}


@dataclass(frozen=True, slots=True)
class HandlerBuild:
    """A handler with what is in force for it, and the topics that it really reads."""

    handler: Handler
    settings: ConsumerSettings
    topics: tuple[str, ...]
    is_async: bool
    inline: bool
    delay: Callable[[int, Failure], float] | None


def build_handler(
    declaration: Declaration,
    settings: ConsumerSettings,
    topics: Mapping[str, str],
    middleware: Sequence[Middleware],
) -> HandlerBuild:
    """The handler as runners call it, with what is in force for it. ``topics``: declared name to actual.

    Raises ConfigurationError for an annotation or a codec that can't be used, or a retry plan that
    contradicts itself.
    """
    where = f"handler {declaration.name}"
    problems = validate_plan(settings.retry_plan(declaration.delay))
    if problems:
        raise ConfigurationError("\n".join(f"{where}: {problem}" for problem in problems))
    decoder = codec_for(
        declaration.annotation,
        declaration.codec,
        parameter=f"the first argument of handler {declaration.name}",
    )
    call = declaration.function
    wants_message = declaration.wants_message
    if declaration.takes_message_first and not declaration.batch:
        call = _message_only(call, is_async=declaration.is_async)
        wants_message = True
    if middleware:
        call = _around(call, wants_message, declaration, middleware)
        wants_message = True
    handler = Handler(
        name=declaration.name,
        call=call,
        decoder=decoder,
        wants_message=wants_message,
        rules=declaration.rules,
        timeout=settings.timeout,
        kill_after=settings.kill_after,
        concurrency=settings.concurrency,
        context=contextvars.copy_context(),
        batch_size=settings.batch_size if declaration.batch else 0,
        batch_linger=settings.batch_linger,
        takes_messages=declaration.batch and declaration.takes_message_first and not middleware,
        code=getattr(declaration.function, "__code__", None),
    )
    return HandlerBuild(
        handler,
        settings,
        tuple(topics.get(topic, topic) for topic in declaration.topics),
        declaration.is_async,
        declaration.runner is RunnerKind.INLINE,
        declaration.delay,
    )


def _message_only(function: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    if is_async:

        def begin(_value: object, message: Message) -> Awaitable[Any]:
            return typing.cast("Awaitable[Any]", function(message))

        return begin

    def call(_value: object, message: Message) -> object:
        return function(message)

    return call


def _around(
    function: Callable[..., Any],
    wants_message: bool,
    declaration: Declaration,
    middleware: Sequence[Middleware],
) -> Callable[..., Any]:
    """The handler inside its middleware, the first declared outermost."""
    for each in middleware:
        if inspect.iscoroutinefunction(each) != declaration.is_async:
            kind = "async def" if declaration.is_async else "def"
            raise ConfigurationError(
                f"middleware {getattr(each, '__name__', each)!r} can't go around handler {declaration.name}: "
                f"the handler is {kind}, so its middleware has to be {kind}, too"
            )
    takes_first = declaration.batch and declaration.takes_message_first

    def innermost(value: Any, message: Any) -> Any:
        if takes_first:
            return function(message)
        return function(value, message) if wants_message else function(value)

    chain: Callable[[Any, Any], Any] = innermost
    for each in reversed(middleware):
        chain = _link(each, chain)
    return chain


def _link(middleware: Middleware, inner: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def call(value: Any, message: Any) -> Any:
        return middleware(message, lambda: inner(value, message))

    return call
