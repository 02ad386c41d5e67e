"""Where a partition starts when the group's committed offset does not say it, found without blocking.

What it is for: questions to the brokers (ids of topics and cluster, oldest and newest offsets) that are
answered on a thread of their own, and the decision that follows from an answer. It must never touch a
Consumer, and never guess: what is not known yet stays unknown and is asked again. Called by the poller's
thread alone.

Why: librdkafka's auto.offset.reset would move a position with no more than a line in its log, and could skip
records. Here every start is a number that was looked up, committed before anything is handled, and said.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, Protocol

from streamloop.errors import StreamLoopError
from streamloop.kafka.topics import UNKNOWN_ID, TopicFacts, Untold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from streamloop.engine.events import TopicPartition
    from streamloop.kafka.topic_admin import TopicAdmin

__all__ = [
    "Answer",
    "Identities",
    "Offsets",
    "PositionError",
    "PositionLookup",
    "Question",
    "StartPolicy",
    "TopicLookup",
    "Wait",
    "out_of_range",
]

StartWord = Literal["earliest", "latest", "stop"]
LOOKUP_TIMEOUT: Final = 5.0
"""Seconds that one question may take."""
FIRST_WAIT: Final = 0.2
LONGEST_WAIT: Final = 10.0


class PositionError(StreamLoopError):
    """A partition has no position to start from, and its policy is to stop."""


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """Where a topic's partitions start. ``start``: without a committed offset ('earliest', 'latest', 'stop',
    or epoch ms). ``out_of_range``: when the committed one is not in the log.
    """

    start: StartWord | int = "earliest"
    out_of_range: StartWord = "earliest"


@dataclass(frozen=True, slots=True)
class Identities:
    """The cluster's id, and of each topic its id, None when it does not exist, Untold when not told."""

    cluster_id: str
    topics: Mapping[str, str | Untold | None]


@dataclass(frozen=True, slots=True)
class Offsets:
    """Of each partition the offset that was asked for, or why it could not be told."""

    found: Mapping[TopicPartition, int | Untold]


Answer = Identities | Offsets


class Question:
    """A question that somebody answers on another thread. Without an answer in time it was not told."""

    def __init__(self) -> None:
        self._answered = threading.Event()
        self._answer: Answer | None = None

    def answer(self, answer: Answer) -> None:
        """Give the answer."""
        self._answer = answer
        self._answered.set()

    @property
    def done(self) -> bool:
        """Whether it is answered."""
        return self._answered.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait for the answer, at most so many seconds."""
        return self._answered.wait(timeout)

    def identities(self) -> Identities | None:
        """The answer, if there is one of this kind."""
        return self._answer if isinstance(self._answer, Identities) else None

    def offsets(self) -> Offsets | None:
        """The answer, if there is one of this kind."""
        return self._answer if isinstance(self._answer, Offsets) else None


class PositionLookup(Protocol):
    """Who asks the brokers. Never blocks; every question is answered within a bound."""

    def identities(self, topics: Iterable[str]) -> Question:
        """Ask for ids, as they are now."""

    def offsets(
        self, partitions: Iterable[TopicPartition], start: Literal["earliest", "latest"] | int
    ) -> Question:
        """Ask for the oldest offset, the one after the newest, or the first one at a time stamp (ms)."""


class TopicLookup:
    """Asks through TopicAdmin, on a daemon thread that starts with the first question.

    One serves all pollers of a process. ``timeout`` in seconds for each question (default 5).
    """

    def __init__(self, admin: TopicAdmin, timeout: float = LOOKUP_TIMEOUT) -> None:
        self._admin = admin
        self._timeout = timeout
        self._asked: queue.SimpleQueue[tuple[Question, Callable[[], Answer]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def identities(self, topics: Iterable[str]) -> Question:
        """As PositionLookup."""
        names = list(dict.fromkeys(topics))
        return self._ask(lambda: self._identities(names))

    def offsets(
        self, partitions: Iterable[TopicPartition], start: Literal["earliest", "latest"] | int
    ) -> Question:
        """As PositionLookup."""
        wanted = list(partitions)
        return self._ask(lambda: self._offsets(wanted, start))

    def _ask(self, find: Callable[[], Answer]) -> Question:
        question = Question()
        self._asked.put((question, find))
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="streamloop-lookup", daemon=True)
                self._thread.start()
        return question

    def close(self) -> None:
        """End the thread, after what was asked before."""
        self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            question, find = asked
            question.answer(find())

    def _identities(self, names: list[str]) -> Answer:
        try:
            cluster_id = self._admin.cluster_id(self._timeout)
            described = self._admin.describe(names, self._timeout, configs=False)
        except Exception as error:  # noqa: BLE001 - whatever it was, the poller asks again
            return Identities(UNKNOWN_ID, dict.fromkeys(names, Untold(str(error))))
        ids: dict[str, str | Untold | None] = {
            name: facts.topic_id if isinstance(facts, TopicFacts) else facts
            for name, facts in described.items()
        }
        return Identities(cluster_id, ids)

    def _offsets(self, wanted: list[TopicPartition], start: Literal["earliest", "latest"] | int) -> Answer:
        try:
            found = self._admin.resolve_offsets(wanted, start, self._timeout)
        except Exception as error:  # noqa: BLE001 - as above
            return Offsets(dict.fromkeys(wanted, Untold(str(error))))
        return Offsets(
            {name: found.get((name.topic, name.partition), Untold("no answer")) for name in wanted}
        )


@dataclass(slots=True)
class Wait:
    """Exponential back-off: when to ask again. ``jitter`` gives a factor around 1."""

    jitter: Callable[[], float]
    failures: int = 0
    until: float = 0.0

    def failed(self, now: float) -> None:
        """Ask again later, later each time."""
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(self.failures, 10))
        self.failures += 1
        self.until = now + wait * self.jitter()

    def worked(self) -> None:
        """Ask at once the next time."""
        self.failures = 0
        self.until = 0.0


class Move(Enum):
    """What to do about a position that the broker called out of range."""

    STAY = "stay"
    """It is in range: the error was about an earlier position."""
    SKIP_AHEAD = "skip ahead"
    """The log begins later by now: go on there, with what was already received."""
    START_ANEW = "start anew"
    """Begin again at another offset: nothing that was received there counts any more."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A move, and the offset to go on from."""

    move: Move
    offset: int


def out_of_range(name: TopicPartition, position: int, oldest: int, end: int, policy: StartPolicy) -> Decision:
    """Where to go on from ``position``, which the broker does not have; it has ``oldest`` up to ``end``.

    Raises PositionError when the policy is to stop.
    """
    if oldest <= position <= end:
        return Decision(Move.STAY, position)
    where = f"{name.topic}/{name.partition}"
    if policy.out_of_range == "stop":
        raise PositionError(
            f"the position {position} of {where} is not in its log, which has {oldest} to {end}, and "
            f"out_of_range is stop. Set the group's offset (kafka-consumer-groups.sh --reset-offsets), or "
            f"set out_of_range to earliest or latest."
        )
    if policy.out_of_range == "earliest" and position < oldest:
        # What was received below is still in hand, and is handled: only what nobody can have is skipped.
        return Decision(Move.SKIP_AHEAD, oldest)
    return Decision(Move.START_ANEW, oldest if policy.out_of_range == "earliest" else end)


class Need(Enum):
    """What is still missing to start a partition."""

    COMMITTED = "the group's committed offset"
    IDENTITY = "the topic's id"
    OFFSET = "an offset"
    NOTHING = "nothing"


@dataclass(slots=True)
class Unresolved:
    """A partition whose start is being found: what is known so far, and when to ask again."""

    wait: Wait
    since: float
    policy: StartPolicy
    committed: int | None = None
    metadata: str = ""
    has_committed: bool = False
    """The group was asked; ``committed`` None then means that it has none."""
    cluster_id: str = UNKNOWN_ID
    topic_id: str | None = None
    anew: bool = False
    """The topic was recreated: whatever was committed is not about it, and it starts at its beginning."""
    later: bool = False
    """It appeared after this Consumer's first assignment of the topic: it starts at its beginning."""
    out_at: int | None = None
    """The position that the broker called out of range; None: this is about a start."""
    offsets: dict[str | int, int] = field(default_factory=dict)
    """What was looked up, by what was asked for."""
    said: bool = False

    def committed_start(self) -> int | None:
        """The committed offset, when all is known to start there."""
        known = self.has_committed and self.topic_id is not None and not self.anew and self.out_at is None
        return self.committed if known else None

    def need(self, name: TopicPartition) -> tuple[Need, Literal["earliest", "latest"] | int]:
        """What to ask for next (with OFFSET: which one). Raises PositionError when the policy is to stop."""
        if self.topic_id is None:
            return Need.IDENTITY, "earliest"
        if self.out_at is not None and not self.anew:
            if "earliest" not in self.offsets:
                return Need.OFFSET, "earliest"
            return (Need.NOTHING if "latest" in self.offsets else Need.OFFSET), "latest"
        if not self.has_committed and not self.anew:
            return Need.COMMITTED, "earliest"
        if self.committed is not None and not self.anew:
            return Need.NOTHING, "earliest"
        start = self.start(name)
        return (Need.NOTHING if start in self.offsets else Need.OFFSET), start

    def start(self, name: TopicPartition) -> Literal["earliest", "latest"] | int:
        """Where it starts without a committed offset. Raises PositionError when the policy is to stop."""
        if self.anew or self.later:
            return "earliest"
        if self.policy.start == "stop":
            raise PositionError(
                f"the group has no committed offset for {name.topic}/{name.partition}, and start is stop. "
                f"Set one (kafka-consumer-groups.sh --reset-offsets), or set start to earliest, latest or "
                f"a time."
            )
        return self.policy.start
