"""The thread that owns one Kafka Consumer: it fetches what there is room for, commits, rebalances.

What it is for: nobody else ever calls the Consumer (a call from another thread starves for seconds while this
one polls). It turns what comes into engine events and carries out the engine's commands. It is safe without
the engine: when nothing is released any more, or the engine's event loop does not turn, it pauses by itself
and stays in the group. It must never block on the engine, never commit synchronously, and never deliver a
message that has no open epoch. Called by the app: start(), command(), wake(); the rest is read.

One turn: commands, starts, commits, pauses; then a fetch, or a short wait while there is no room. Full is
waited for on an event, not in librdkafka, since a pause throws away what is prefetched; only after the dwell
everything is paused, and polled without waiting, so that the callbacks run and the member stays.

After a stall (the process was stopped, or this thread starved) the group may have gone on without us, and
librdkafka learns of it only with the answer to its next heartbeat; until then it hands out what it has
prefetched. So everything is paused, and nothing is delivered or committed, until the coordinator has answered
two requests that were sent after that heartbeat on the same connection.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import KafkaException

from streamloop.engine import events as ev
from streamloop.engine.events import Reason, TopicPartition
from streamloop.kafka.client_events import PARTITION_EOF, ClientEvents, FatalConsumerError
from streamloop.kafka.commands import (
    Close,
    Command,
    PollerOptions,
    PollerStats,
    PollerStatus,
    ResetTopic,
    StopFetching,
)
from streamloop.kafka.commits import CommitBook, Confirmed, HeldBy
from streamloop.kafka.coordinator import PROOFS, answers, await_join
from streamloop.kafka.ends import Ends
from streamloop.kafka.fetching import Fetching
from streamloop.kafka.rebalance import Rebalance
from streamloop.kafka.slots import Slots
from streamloop.kafka.starts import Starts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamloop.engine.events import Event
    from streamloop.engine.gate import Capacity
    from streamloop.engine.record import Record
    from streamloop.kafka.commands import GroupProtocol, HeartbeatStamp
    from streamloop.kafka.commits import Verdict
    from streamloop.kafka.positions import PositionLookup

__all__ = [
    "Close",
    "Command",
    "FatalConsumerError",
    "Poller",
    "PollerOptions",
    "PollerStats",
    "PollerStatus",
    "ResetTopic",
    "StopFetching",
]

log = logging.getLogger("streamloop.poller")

POLL: Final = 0.05
"""Seconds that one poll may wait for a message."""
IDLE: Final = 0.1
"""Longest time between two turns while nothing is fetched."""
BURST: Final = 100
"""Events taken one after the other while nothing is fetched."""
ENOUGH: Final = 16
"""A full buffer is filled again when 1/16 of it is free, so that messages are not fetched one by one."""
ENOUGH_WAIT: Final = 0.02
"""Seconds after which less than that will do."""


class Poller:
    """A daemon thread and its Consumer.

    ``intake``: the Consumer's number, in every event. ``make_consumer(protocol, callbacks)`` builds it, with
    the callbacks error_cb and on_commit among its properties. ``deliver`` takes events, from this thread,
    and never blocks. ``prepare`` reads the headers of what was fetched. ``on_exit`` is called on this thread
    when it ends, with what it failed of, or None. ``jitter``: a factor around 1 for every wait.
    """

    def __init__(
        self,
        *,
        name: str,
        intake: int,
        topics: Sequence[str],
        capacity: Capacity,
        options: PollerOptions,
        make_consumer: Callable[[GroupProtocol, dict[str, Any]], Any],
        lookup: PositionLookup,
        deliver: Callable[[list[Event]], None],
        heartbeat: HeartbeatStamp,
        clock: Callable[[], float] = time.monotonic,
        prepare: Callable[[TopicPartition, list[Record]], None] | None = None,
        on_exit: Callable[[BaseException | None], None] | None = None,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),  # noqa: S311 - no secret
    ) -> None:
        self.label = name
        self.topics = tuple(topics)
        self.waiting = False
        """It is full and waits to be woken."""
        self.stalled = False
        """The group may have gone on without this member: nothing may start (Capacity.start_until)."""
        self.failure: BaseException | None = None
        """What the thread ended of."""
        self.protocol: GroupProtocol | None = None
        self.last_turn = clock()
        self._capacity = capacity
        self._options = options
        self._make_consumer = make_consumer
        self._deliver = deliver
        self._heartbeat = heartbeat
        self._clock = clock
        self._on_exit = on_exit
        self._consumer: Any = None
        self._commands: deque[Command] = deque()
        self._later: list[Command] = []
        """Commands that came during a callback and have to wait for its end."""
        self._wake = threading.Event()
        self._out: list[Event] = []
        self._fetching_stopped = False
        self._closing = False
        self._full_since: float | None = None
        self._proofs = 0
        self._commits = CommitBook(jitter)
        self._slots = Slots(name, self.emit, self._commits, clock)
        self._starts = Starts(
            self._slots,
            intake=intake,
            name=name,
            lookup=lookup,
            policy=options.policy,
            emit=self.emit,
            clock=clock,
            jitter=jitter,
            group=options.group,
        )
        self._rebalance = Rebalance(
            self,
            self._slots,
            self._starts,
            name=name,
            lookup=lookup,
            commits=self._commits,
            revoke_wait=options.revoke_wait,
            clock=clock,
        )
        self._events = ClientEvents(self._slots, self._starts, name=name, emit=self.emit, clock=clock)
        self._fetching = Fetching(self._slots, capacity, self.emit, self._events.take, prepare)
        self.stats = PollerStats(
            self._rebalance.counts,
            self._commits.results,
            self._starts.out_of_range,
            self._events.counts,
            self._commits.durations,
        )
        self.ends = Ends(self._slots, self._fetching.stamps, clock=clock)
        """Where the assigned partitions end, as far as that is known."""
        self._thread = threading.Thread(target=self._run, name=f"streamloop-poller-{name}", daemon=True)

    # ------------------------------------------------------------------------------------- from any thread

    def start(self) -> None:
        """Start the thread, which makes its Consumer and subscribes."""
        self.last_turn = self._clock()
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def detail(self) -> str:
        """What keeps it from working, in words; empty when nothing does."""
        return self._events.detail

    def command(self, commands: Sequence[Command]) -> None:
        """Carry these out, in order. Never blocks."""
        self._commands.extend(commands)
        self._wake.set()

    def wake(self) -> None:
        """Capacity was given back."""
        self._wake.set()

    def may_start(self, now: float) -> bool:
        """Whether a handler may start: not when this thread stands still, nor while it looks into that."""
        return now <= self._capacity.start_until

    def status(self) -> PollerStatus:
        """What it does now."""
        held: dict[str, tuple[str, ...]] = {}
        everywhere = {reason.value for reason in list(self._slots.hold_all)}
        assigned = []
        for (topic, partition), slot in list(self._slots.by_name.items()):
            where = f"{topic}/{partition}"
            assigned.append(where)
            reasons = {reason.value for reason in slot.reasons | slot.own} | everywhere
            if slot.unresolved is not None:
                reasons.add(Reason.ASSIGNING.value)
            if reasons:
                held[where] = tuple(sorted(reasons))
        return PollerStatus(
            name=self.label,
            protocol=self.protocol,
            assigned=tuple(assigned),
            held=held,
            detail=self.detail,
            stalled=self.stalled,
            dirty_commits=self._commits.dirty,
            messages=self._fetching.messages,
            bytes=self._fetching.bytes,
            dropped=self._fetching.dropped,
            pauses=self._slots.pauses,
            resumes=self._slots.resumes,
        )

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._subscribe("classic" if self._options.protocol == "classic" else "consumer")
            while not self._closing:
                self._turn()
        except BaseException as error:
            self.failure = error
            log.critical("%s: the poller ends: %s", self.label, error, exc_info=error, extra={"kind": "died"})
        try:
            self._leave()
        except BaseException as error:
            self.failure = self.failure or error
            log.critical("%s: could not leave the group", self.label, exc_info=error, extra={"kind": "died"})
        finally:
            if self._on_exit is not None:
                self._on_exit(self.failure)

    def _subscribe(self, protocol: GroupProtocol) -> None:
        callbacks = {"error_cb": self._events.client_error, "on_commit": self._committed}
        self._consumer = self._make_consumer(protocol, callbacks)
        self.protocol = protocol
        rebalance = self._rebalance
        self._consumer.subscribe(
            list(self.topics),
            on_assign=rebalance.on_assign,
            on_revoke=rebalance.on_revoke,
            on_lost=rebalance.on_lost,
        )

    def _leave(self) -> None:
        self._slots.stopped = True
        if self._consumer is not None:
            try:
                if self.protocol == "classic":
                    await_join(self._consumer, self.topics[0], self._clock, self._drop_events)
                    if not self._slots.by_name:
                        # close() of a member without partitions sends no LeaveGroup (librdkafka 2.16).
                        self._consumer.unsubscribe()
                self._consumer.close()
            finally:
                self._slots.close_all()
                self.flush()
        if self._rebalance.failure is not None:
            self.failure = self.failure or self._rebalance.failure

    def _turn(self) -> None:
        """One turn. Every wait in it ends with the next command, or within a tenth of a second."""
        now = self._clock()
        if now - self.last_turn > self._options.stall_after and self._slots.by_name:
            self._suspect(now - self.last_turn)
        self.last_turn = now
        self._allow_starts(now)
        self.stats.turns += 1
        self._carry_out()
        if self._closing:
            return
        self._watch_engine(now)
        consumer, slots = self._consumer, self._slots
        self._starts.resolve(consumer)
        self._judge(self._commits.give_up_waiting(now))
        if not self.stalled:
            self._send_commits(now)
        if slots.unsettled:
            slots.settle(consumer)
        self.ends.look(consumer, now)
        slots.call += 1
        if self.stalled:
            self._look_into_stall()
        elif slots.hold_all or slots.stopped:
            self._stand()
        else:
            self._fetch(now)
        self.flush()
        self._raise_what_failed()

    def _raise_what_failed(self) -> None:
        if self._rebalance.failure is not None:
            raise self._rebalance.failure
        fatal = self._events.fatal
        if fatal is None:
            return
        auto = self._options.protocol == "auto" and self.protocol == "consumer"
        if not auto or not self._events.unsupported or self._rebalance.ever:
            raise fatal
        log.info("%s: the broker does not offer group.protocol=consumer: using classic", self.label)
        self._events.fatal = None
        self._consumer.close()
        self._subscribe("classic")

    # -------------------------------------------------------------------------------------------- fetching

    def _fetch(self, now: float) -> None:
        room = self._capacity.room()
        if room <= 0 or (self._full_since is not None and not self._has_room(now)):
            self._await_room(now)
            return
        self._full_since = None
        consumer = self._consumer
        most = min(room, self._options.max_fetch)
        asked = self._clock()
        # consume() waits until it has all it was asked for: so first what is there, then for one to come.
        messages = consumer.consume(most, 0)
        if not messages:
            message = consumer.poll(POLL)
            if message is None:
                return
            messages = [message]
            if most > 1:
                messages += consumer.consume(most - 1, 0)
        came = self._clock()
        stood = came - now
        if stood > self._options.stall_after:
            self._suspect(stood)
            self._drop(messages)
        else:
            before = self._fetching.messages
            self._fetching.take(messages)
            if self._fetching.messages > before:
                self.stats.polls.observe(came - asked)
                if self._options.spans is not None:
                    self._options.spans.polled(came - asked, messages)

    def _has_room(self, now: float) -> bool:
        """Enough is free after it was full; or some, and it has waited long enough."""
        capacity = self._capacity
        if capacity.room() <= 0:
            return False
        if (
            capacity.messages <= capacity.high_messages - capacity.high_messages // ENOUGH
            and capacity.bytes <= capacity.high_bytes - capacity.high_bytes // ENOUGH
        ):
            return True
        return self._full_since is not None and now - self._full_since >= ENOUGH_WAIT

    def _await_room(self, now: float) -> None:
        """Full: wait on the event, not in librdkafka; after the dwell hold everything."""
        since = self._full_since
        if since is None:
            since = self._full_since = now
        if now - since >= self._options.dwell and self._capacity.room() <= 0:
            self._full_since = None
            self._slots.hold_every(Reason.WATERMARK, "the buffer is full, and nothing is being finished")
            return
        self.waiting = True
        self._wait(ENOUGH_WAIT if self._capacity.room() > 0 else IDLE, self._has_room)
        self.waiting = False

    def _stand(self) -> None:
        """Nothing is to be fetched: serve the callbacks, and wait for what ends it."""
        self._take_events()
        slots = self._slots
        if Reason.WATERMARK in slots.hold_all:
            if self._capacity.is_low():
                slots.release_every(Reason.WATERMARK)
                return
            self.waiting = True
            self._wait(IDLE, lambda _now: self._capacity.is_low())
            self.waiting = False
        else:
            self._wait(IDLE, lambda _now: False)

    def _take_events(self) -> None:
        """What there is, without waiting for more."""
        for _ in range(BURST):
            message = self._consumer.poll(0)
            if message is None:
                return
            self._fetching.take([message])

    def _wait(self, longest: float, enough: Callable[[float], bool]) -> None:
        """Until there is a command, ``enough``, or the time is over."""
        until = self._clock() + longest
        wake = self._wake
        while True:
            wake.clear()
            now = self._clock()
            if self._commands or now >= until or enough(now):
                return
            wake.wait(until - now)

    def _watch_engine(self, now: float) -> None:
        if now - self._heartbeat.stamp > self._options.engine_silent_after:
            self._slots.hold_every(Reason.ENGINE_SILENT, "the event loop does not turn")
        elif Reason.ENGINE_SILENT in self._slots.hold_all:
            self._slots.release_every(Reason.ENGINE_SILENT)

    # --------------------------------------------------------------------------------------- after a stall

    def _allow_starts(self, now: float) -> None:
        """This thread runs: handlers may start until it has stood still for too long."""
        if not self.stalled:
            self._capacity.start_until = now + self._options.stall_after

    def _suspect(self, stood: float) -> None:
        self.stalled = True
        self._capacity.start_until = -math.inf
        self.stats.stalls += 1
        self._proofs = 0
        self._slots.stopped = True
        self._slots.unsettled = True
        log.warning(
            "%s: stood still for %.1f s: nothing is handled until the group says that this is still a member",
            self.label,
            stood,
            extra={"kind": "stall", "seconds": round(stood, 1)},
        )

    def _look_into_stall(self) -> None:
        """Serve the callbacks, ask the coordinator, and serve them again: a loss comes before its answer."""
        self._drop_events()
        slots = list(self._slots.by_name.values())
        if slots and self._proofs < PROOFS:
            self._proofs = self._proofs + 1 if answers(self._consumer, *slots[0].name) else 0
            self._drop_events()
        if self._proofs >= PROOFS or not self._slots.by_name:
            self.stalled = False
            self._slots.stopped = self._fetching_stopped
            self._slots.unsettled = True

    def _drop_events(self) -> None:
        """Run the callbacks."""
        for _ in range(BURST):
            message = self._consumer.poll(0)
            if message is None:
                return
            self._drop([message])

    def _drop(self, messages: Sequence[Any]) -> None:
        """These may be stale: they are fetched again, or by their new owner."""
        for message in messages:
            if message.error() is not None and message.error().code() != PARTITION_EOF:
                self._events.take(message)
                continue
            slot = self._slots.by_name.get(TopicPartition(message.topic(), message.partition()))
            if slot is not None:
                slot.moved = False
                self._slots.unsettled = True

    # -------------------------------------------------------------------------------------------- commands

    def _carry_out(self) -> None:
        if self._later:
            self._commands.extendleft(reversed(self._later))
            self._later.clear()
        commands = self._commands
        while commands:
            command = commands.popleft()
            match command:
                case ev.Commit() | ev.Hold() | ev.Quiet():
                    self._take_in_callback(command)
                case ev.Seek():
                    slot = self._slots.find(command.partition, command.epoch)
                    if slot is not None and slot.unresolved is None:
                        self._slots.seek(self._consumer, slot, command.offset, command.token)
                case ResetTopic():
                    self._starts.reset(command.topic, command.topic_id)
                case StopFetching():
                    self._fetching_stopped = self._slots.stopped = self._slots.unsettled = True
                case Close():
                    self._closing = True
                    return

    def _take_in_callback(self, command: ev.Commit | ev.Hold | ev.Quiet) -> None:
        slot = self._slots.find(command.partition, command.epoch)
        match command:
            case ev.Commit():
                self._commits.put(command, assigned=slot.epoch if slot is not None else None)
            case ev.Hold():
                if slot is not None and slot.reasons != command.reasons:
                    slot.reasons = command.reasons
                    self._slots.unsettled = True
            case ev.Quiet():
                if slot is not None:
                    slot.quiet = True

    # --------------------------------------------------------------------------------------------- commits

    def _send_commits(self, now: float) -> None:
        # Asked right before the call: a commit for a partition that another member has by now succeeds.
        self._commit(self._commits.take(now, self._slots.epochs()))

    def _commit(self, parts: Sequence[ev.Commit]) -> None:
        if not parts:
            return
        offsets = [
            confluent_kafka.TopicPartition(
                part.partition.topic, part.partition.partition, part.offset, self._commits.metadata(part)
            )
            for part in parts
        ]
        if self._options.spans is not None:
            self._options.spans.committing(parts)
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            told = error.args[0]
            self._judge(self._commits.failed(self._clock(), parts, told.code(), told.str()))

    def _committed(self, error: Any, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        """librdkafka's report, inside a call of ours."""
        answers = [
            (each.topic, each.partition, each.offset, each.error.code() if each.error is not None else 0)
            for each in partitions
        ]
        code, text = (error.code(), error.str()) if error is not None else (0, "")
        if not text:
            text = next((each.error.str() for each in partitions if each.error is not None), "")
        if text:
            self._events.say(f"commit {text}", logging.INFO, f"a commit failed: {text}", kind="commit_failed")
        if self._options.spans is not None:
            self._options.spans.committed(code or next((each[3] for each in answers if each[3]), 0))
        self._judge(self._commits.answered(self._clock(), code, text, answers))

    def _judge(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            if isinstance(verdict, Confirmed):
                self.stats.last_commit = time.time()
                commit = verdict.commit
                if self._slots.find(commit.partition, commit.epoch) is not None:
                    self._starts.confirmed(commit.partition, commit.epoch)
                    self.emit(ev.Committed(commit.partition, commit.epoch, commit.offset, commit.version))
                continue
            slot = self._slots.find(verdict.partition, verdict.epoch)
            if slot is None:
                continue
            if isinstance(verdict, HeldBy):
                log.warning("%s: %s", self.label, verdict.detail, extra={"kind": "commit_refused"})
                self._slots.hold(slot, verdict.reason, verdict.detail)
                if verdict.reason is Reason.TOPIC_GONE:
                    self._starts.gone(slot.name.topic, verdict.detail)
            else:
                self._slots.release(slot, verdict.reason)

    # ------------------------------------------------------------------------- for the rebalance callbacks

    def emit(self, event: Event) -> None:
        """Add an event to the next delivery."""
        self._out.append(event)

    def flush(self) -> None:
        """Deliver what was added."""
        if self._out:
            events, self._out = self._out, []
            self._deliver(events)

    def serve(self, timeout: float) -> None:
        """Inside a callback: take commits and what is quiet; the rest waits for the callback's end."""
        commands = self._commands
        self._wake.clear()
        if not commands:
            self._wake.wait(timeout)
        while commands:
            command = commands.popleft()
            if isinstance(command, ev.Commit | ev.Hold | ev.Quiet):
                self._take_in_callback(command)
            else:
                self._later.append(command)

    def engine_silent(self) -> bool:
        """Whether the engine's event loop does not turn."""
        return self._clock() - self._heartbeat.stamp > self._options.engine_silent_after

    def send_parting(self, leaving: dict[TopicPartition, int], recreated: frozenset[str]) -> None:
        """Commit the newest positions of partitions that leave, without waiting for the answer."""
        self._commit(self._commits.take_parting(leaving, self._clock(), recreated=recreated))

    def touch(self) -> None:
        """A callback runs: this thread is alive."""
        now = self._clock()
        if now - self.last_turn <= self._options.stall_after:
            # Otherwise this may be the first callback after a stall, and the loss comes with a later one.
            self._allow_starts(now)
        self.last_turn = now
        if self._rebalance.assigned:
            self._events.detail = ""
