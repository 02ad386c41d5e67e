"""The errors streamloop itself raises: a small tree, so that a program can catch one class and mean it.

A message is a sentence that names the setting, the topic or the message it is about, and says what to do.
Nothing here ever carries a secret or a whole payload. What a *handler* raises is not part of this tree (see
``streamloop.outcomes``); the command line turns ``exit_code`` into the exit code of the process.
"""

from __future__ import annotations

from typing import ClassVar

from streamloop.engine.retry import Kind


class StreamLoopError(Exception):
    """Base of all errors raised by streamloop. ``exit_code`` is what the command line ends with (1)."""

    exit_code: ClassVar[int] = 1


class ConfigurationError(StreamLoopError):
    """A setting, a declaration or an installation is wrong: nothing was started. Exit code 2."""

    exit_code: ClassVar[int] = 2


class TopicError(ConfigurationError):
    """A topic is missing or set up in a way that would lose records.

    The message has the command that mends it.
    """


class DecodeError(StreamLoopError):
    """A value can't be decoded as the handler's annotation says. Permanent: dead letter at once.

    Its text is at most 200 characters and never holds the whole payload. A consumer may still list the class
    itself (for example as fatal) to decide otherwise.
    """

    streamloop_kind: ClassVar[Kind] = Kind.PERMANENT


class EncodeError(StreamLoopError):
    """A value given to ``publish`` can't be turned into bytes.

    Raised in the handler; transient like any other.
    """


class PublishError(StreamLoopError):
    """The broker did not confirm a record that a handler published.

    The message that published it is not acknowledged.
    """


class OutcomeError(StreamLoopError):
    """A batch handler returned something that can't be read as one outcome a message.

    Every message of it failed.
    """


def short_class(name: str) -> str:
    """An error's class without its module."""
    return name.rpartition(".")[2] or name
