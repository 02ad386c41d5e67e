"""A broker, a poller, a publisher and a runner in miniature around a real Engine, and what must be true.

The world keeps its own account of what is acknowledged, made from what it told the engine, and compares every
effect with it. What happens, and when, is drawn by the test that drives it. ``settle`` lets everything go
well: then all there is must be acknowledged in the end, or something was lost or got stuck.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from streamloop.engine import events as ev
from streamloop.engine.consumer import ConsumerSpec, ConsumerState
from streamloop.engine.engine import Engine, EngineConfig
from streamloop.engine.events import Reason, Target, TopicPartition
from streamloop.engine.gate import Capacity
from streamloop.engine.lanes import Ordering
from streamloop.engine.metadata import Identity, Restored, decode
from streamloop.engine.record import Attempts, Record
from streamloop.engine.retry import Failure, Kind, RetryPlan
from streamloop.engine.states import State
from tests.engine.driver import CLUSTER, ORDERS, OTHERS, RETRY, TOPIC_ID, role_of

RETRY_DELAY = 30.0
PATIENCE = 50
"""Turns of five seconds without an acknowledgement: more than any delay here."""
HERE = Identity(CLUSTER, TOPIC_ID)


class Entry(NamedTuple):
    """A record of the log. ``uid`` is unique: after a truncation another record has the same offset."""

    offset: int
    key: bytes | None
    size: int
    leader_epoch: int
    uid: int
    due: float | None
    before: int


@dataclass
class Log:
    """A partition at the broker, and what its group has committed there."""

    entries: list[Entry] = field(default_factory=list)
    end: int = 0
    leader_epoch: int = 1
    committed: tuple[int, str, frozenset[int]] | None = None
    """Offset, metadata, and the uids that were acknowledged when this commit was asked for."""


@dataclass
class Life:
    """One epoch of a partition."""

    name: TopicPartition
    epoch: int
    base: int
    acked: set[int]
    position: int
    open: bool = True
    """Until the poller closes it."""
    ended: bool = False
    """The engine has been told that it is closed."""
    revoking: bool = False
    told: bool = False
    """The engine has been told that it is about to leave."""
    started: bool = True
    """Its start position is committed."""
    seek: ev.Seek | None = None
    reasons: frozenset[Reason] = frozenset()
    outside: set[Reason] = field(default_factory=set)


@dataclass(frozen=True)
class Setup:
    """What one run is configured with."""

    ordering: Ordering = Ordering.KEY
    concurrency: int = 4
    batch_size: int = 0
    retry_topic: bool = True
    strict: bool = False
    dead_letters: int | None = None
    high: int = 20
    high_bytes: int = 20_000
    gap_limit: int = 20_000
    commit_interval: float = 1.0
    max_messages: int | None = None


class World:
    """All of it. Every method is something that can happen; ``deliver`` tells the engine what did."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.logs = {name: Log() for name in (ORDERS, OTHERS, RETRY)}
        self.epoch = 0
        self.uid = 0
        self.now = 1_000.0
        self.process()

    def process(self) -> None:
        """A process starts; all that a former one knew is gone."""
        setup = self.setup
        plan = RetryPlan(
            in_place_attempts=2,
            retry_delays=(RETRY_DELAY,) if setup.retry_topic and not setup.strict else (),
            strict_order=setup.strict,
        )
        spec = ConsumerSpec(
            "billing", setup.ordering, setup.concurrency, plan, setup.dead_letters, setup.batch_size
        )
        self.capacities = [Capacity(setup.high, setup.high_bytes) for _ in range(2)]
        config = EngineConfig(
            [spec],
            role_of,
            commit_interval=setup.commit_interval,
            gap_limit=setup.gap_limit,
            lane_limit=8,
            backoff_share=0.25,
            max_messages=setup.max_messages,
            uniform=lambda: 0.5,
        )
        self.engine = Engine(config, self.capacities)
        self.lives: dict[TopicPartition, Life] = {}
        self.of: dict[Record, tuple[Life, Entry]] = {}
        self.ready: list[Record] = []
        self.running: list[Record] = []
        self.routes: dict[Record, ev.Route] = {}
        self.commits: dict[TopicPartition, tuple[ev.Commit, frozenset[int]]] = {}
        self.pending: list[ev.Event] = []
        self.effects: list[ev.Effect] = []
        self.begun: set[Record] = set()
        self.bound_reached = False
        self.sound = True
        """No check has failed."""

    # --------------------------------------------------------------------------------------------- the broker

    def append(
        self,
        name: TopicPartition,
        key: bytes | None,
        size: int = 100,
        gap: int = 0,
        due: float | None = None,
        before: int = 0,
    ) -> None:
        log = self.logs[name]
        self.uid += 1
        offset = log.end + gap
        log.entries.append(Entry(offset, key, size, log.leader_epoch, self.uid, due, before))
        log.end = offset + 1

    def marker(self, name: TopicPartition) -> None:
        """An offset that no consumer ever sees."""
        self.logs[name].end += 1

    def truncate(self, name: TopicPartition, keep: int) -> None:
        """An unclean election: all but ``keep`` records behind the committed offset is written anew."""
        log = self.logs[name]
        if name in self.lives:
            return
        floor = log.committed[0] if log.committed else 0
        tail = [entry for entry in log.entries if entry.offset >= floor][keep:]
        log.leader_epoch += 1
        if tail:
            log.entries = log.entries[: -len(tail)]
            log.end = tail[0].offset
        for entry in tail:
            self.append(name, entry.key, entry.size, 0, entry.due, entry.before)

    # --------------------------------------------------------------------------------------------- the poller

    def assign(self, name: TopicPartition) -> None:
        if name in self.lives:
            return
        log = self.logs[name]
        self.epoch += 1
        offset, metadata, acked = log.committed or (0, "", frozenset[int]())
        self.lives[name] = Life(
            name, self.epoch, offset, set(acked), offset, started=log.committed is not None
        )
        intake = int(name == RETRY)
        self.pending.append(
            ev.Assigned(
                intake, name, self.epoch, offset, log.committed is not None, metadata, CLUSTER, TOPIC_ID
            )
        )

    def revoke(self, name: TopicPartition) -> None:
        life = self.lives.get(name)
        if life is not None and not life.revoking:
            life.revoking = True
            self.pending.append(ev.Revoking([(name, life.epoch)]))

    def close(self, name: TopicPartition, *, lost: bool) -> None:
        life = self.lives.get(name)
        if life is None:
            return
        if not lost:
            self.commit(name, applied=True, answered=False)
        del self.lives[name]
        life.open = False
        self.pending.append(ev.Closed([(name, life.epoch)], lost))

    def poll(self, name: TopicPartition, most: int, *, race: bool = False) -> None:
        """Take records; ``race``: though held, since the fetch was under way before the hold was told."""
        life = self.lives.get(name)
        if life is None or ((life.reasons or life.outside) and not race):
            return
        capacity = self.capacities[int(name == RETRY)]
        room = min(most, capacity.room())
        log = self.logs[name]
        ahead = [entry for entry in log.entries if entry.offset >= life.position]
        if not ahead:
            life.position = max(life.position, log.end)
            self.pending.append(ev.EndOfPartition(name, life.epoch, life.position))
            return
        taken = ahead[:room]
        if not taken:
            return
        before = capacity.bytes
        sizes = [entry.size for entry in taken]
        capacity.took(len(taken), sum(sizes), max(sizes))
        assert capacity.messages <= capacity.high_messages
        assert before < capacity.high_bytes
        life.position = taken[-1].offset + 1
        records = []
        for entry in taken:
            record = Record(entry.offset, entry.key, entry.size, entry.leader_epoch, entry)
            if entry.due is not None:
                record.attempts = Attempts(entry.before, entry.due, self.now)
            self.of[record] = (life, entry)
            records.append(record)
        self.pending.append(ev.Fetched(name, life.epoch, records))

    def sought(self, name: TopicPartition) -> None:
        """The poller carries out the newest seek."""
        life = self.lives.get(name)
        if life is not None and life.seek is not None:
            life.position = life.seek.offset
            self.pending.append(ev.Sought(name, life.epoch, life.seek.token))
            life.seek = None

    def rewind(self, name: TopicPartition, back: int) -> None:
        """The Consumer hands out again what it has handed out in this epoch already."""
        life = self.lives.get(name)
        if life is not None:
            life.position = max(life.base, life.position - back)

    def commit(self, name: TopicPartition, *, applied: bool, answered: bool) -> None:
        """The newest commit that the engine asked for is sent; the broker and the answer may fail."""
        commit, acked = self.commits.get(name, (None, frozenset[int]()))
        if commit is None:
            return
        life = self.lives.get(name)
        if life is None or life.epoch != commit.epoch:
            del self.commits[name]  # the poller drops what is not assigned in that very epoch
            return
        if not applied:
            return
        self.logs[name].committed = (commit.offset, commit.metadata, acked)
        if answered:
            del self.commits[name]
            self.pending.append(ev.Committed(name, commit.epoch, commit.offset, commit.version))

    def stall(self, index: int, *, over: bool) -> None:
        """A poller stands still: others may have its partitions. Or its callbacks have run again."""
        self.capacities[index].start_until = math.inf if over else self.now - 1.0

    def stalled(self) -> bool:
        return any(capacity.start_until < self.now for capacity in self.capacities)

    def operator(self, name: TopicPartition, *, held: bool) -> None:
        life = self.lives.get(name)
        if life is not None:
            self.pending.append(ev.HoldChanged(name, life.epoch, Reason.OPERATOR, held=held))

    # ------------------------------------------------------------------------------ the runner, the publisher

    def start(self, at: int) -> None:
        if not self.ready:
            return
        record = self.ready.pop(at % len(self.ready))
        if not record.begin(self.now):
            self.pending.append(ev.Unstarted([record]))
            return
        assert not self.of[record][0].told, f"{record} starts though its partition is about to leave"
        assert record.part.intake.capacity.start_until >= self.now, f"{record} starts after a stall"
        lane = self.lane(record)
        if lane is not None:
            for other in self.running:
                if self.lane(other) == lane:
                    same_epoch = self.of[other][0] is self.of[record][0]
                    assert same_epoch, f"{record} starts beside {other} of another epoch"
                    assert self.setup.batch_size, f"{record} starts beside {other}"
        self.running.append(record)
        self.begun.add(record)
        assert len(self.begun) <= (self.setup.max_messages or len(self.begun)), "more than the bound"

    def finish(self, at: int, failure: Failure | None) -> None:
        if self.running:
            record = self.running.pop(at % len(self.running))
            record.failure = failure
            self.pending.append(ev.Finished([record]))

    def finish_all(self) -> None:
        if self.running:
            self.pending.append(ev.Finished(self.running))
            self.running = []

    def give_back(self, count: int) -> None:
        if self.ready:
            back, self.ready = self.ready[-count:], self.ready[:-count]
            self.pending.append(ev.Unstarted(back))

    def undecodable(self, at: int, failure: Failure) -> None:
        if self.ready:
            record = self.ready.pop(at % len(self.ready))
            record.failure = failure
            self.pending.append(ev.Finished([record]))

    def publish(self, at: int, how: str) -> None:
        if not self.routes:
            return
        record = list(self.routes)[at % len(self.routes)]
        if how == "block":
            self.pending.append(ev.PublishBlocked(record, "the target is full"))
        elif how == "unblock":
            self.pending.append(ev.PublishUnblocked(record))
        else:
            route = self.routes.pop(record)
            if route.target is Target.RETRY:
                # At least one offset beyond what any epoch has seen as the end; due by this topic's delay.
                self.append(RETRY, record.key, 100, 0, self.now + RETRY_DELAY, route.attempt)
            self.pending.append(ev.Published(record))

    def crash(self) -> None:
        self.process()

    # ------------------------------------------------------------------------------------- the engine's turn

    def deliver(self, wait: float = 0.0) -> None:
        """The engine hears what happened; everything that it answers is checked."""
        self.now += wait
        self.sound = False
        events, self.pending = self.pending, []
        self.ending = {closed for e in events if isinstance(e, ev.Closed) for closed in e.partitions}
        for event in events:
            self._account(event)
        self.effects = self.engine.step(self.now, events or [ev.Tick()])
        for effect in self.effects:
            self._obey(effect)
            self.bound_reached |= isinstance(effect, ev.BoundReached)
        self._check()
        self.sound = True

    def _account(self, event: ev.Event) -> None:
        """What must be acknowledged now, by what happened alone."""
        if isinstance(event, ev.Finished):
            for record in event.records:
                life, entry = self.of[record]
                done = record.failure is None or record.failure.kind is Kind.SKIP
                if done and not life.ended:
                    life.acked.add(entry.uid)
        elif isinstance(event, ev.Published):
            life, entry = self.of[event.record]
            if not life.ended:
                life.acked.add(entry.uid)
        elif isinstance(event, ev.Closed):
            for life, _ in self.of.values():
                if (life.name, life.epoch) in list(event.partitions):
                    life.ended = True
        elif isinstance(event, ev.Revoking | ev.Committed):
            for life in self.lives.values():
                if isinstance(event, ev.Revoking):
                    life.told |= (life.name, life.epoch) in list(event.partitions)
                else:
                    life.started |= (life.name, life.epoch) == (event.partition, event.epoch)
        elif isinstance(event, ev.HoldChanged):
            live = self.lives.get(event.partition)
            if live is not None and live.epoch == event.epoch:
                live.outside = {event.reason} if event.held else set()

    def _obey(self, effect: ev.Effect) -> None:
        if isinstance(effect, ev.Dispatch):
            self._dispatched(effect.records)
        elif isinstance(effect, ev.Route):
            assert effect.record not in self.routes, f"{effect.record} is routed twice"
            self.routes[effect.record] = effect
        elif isinstance(effect, ev.Hold | ev.Seek | ev.Commit):
            life = self.lives.get(effect.partition)
            if life is None or life.epoch != effect.epoch:
                # The poller closed it, and the engine had not been told when it decided this.
                part = self.engine.parts.get(effect.partition)
                ends_now = (effect.partition, effect.epoch) in self.ending
                assert ends_now or (part is not None and part.epoch == effect.epoch), f"{effect} is too late"
                return
            if isinstance(effect, ev.Hold):
                life.reasons = effect.reasons
            elif isinstance(effect, ev.Seek):
                life.seek = effect
            else:
                self._committing(life, effect)

    def _committing(self, life: Life, commit: ev.Commit) -> None:
        log = self.logs[life.name]
        for entry in log.entries:
            if life.base <= entry.offset < commit.offset:
                assert entry.uid in life.acked, f"{commit} passes {entry}"
        restored = decode(commit.metadata, HERE, commit.offset)
        assert restored is None or isinstance(restored, Restored)
        claimed = set()
        if restored is not None:
            for entry in log.entries:
                inside = any(start <= entry.offset < end for start, end in restored.runs)
                if inside and entry.leader_epoch <= restored.leader_epoch:
                    claimed.add(entry.uid)
        beyond = {e.uid for e in log.entries if e.offset >= commit.offset and e.uid in life.acked}
        assert claimed == beyond, f"{commit} claims {claimed}, acknowledged are {beyond}"
        self.commits[life.name] = (commit, frozenset(life.acked))

    def _dispatched(self, records: list[Record]) -> None:
        assert not self.stalled(), f"{records} are dispatched though a poller stands still"
        out = set(self.ready) | set(self.running)
        assert len(set(records)) == len(records)
        for record in records:
            life, entry = self.of[record]
            assert record not in out, f"{record} is dispatched twice"
            assert not life.ended, f"{record} of an ended epoch is dispatched"
            assert life.started, f"{record} is dispatched before its start position is committed"
            assert entry.uid not in life.acked, f"{record} is dispatched though acknowledged"
            assert Reason.OPERATOR not in life.outside, f"{record} is dispatched though an operator holds it"
            assert record.attempts is None or record.attempts.due <= self.now, f"{record} is not due"
            lane = self.lane(record)
            if lane is None:
                continue
            for other, (their_life, their_entry) in self.of.items():
                if their_life is not life or self.lane(other) != lane or other.offset >= record.offset:
                    continue
                if their_entry.uid not in life.acked and other in record.part.ledger.outstanding:
                    assert self.setup.batch_size, f"{record} overtakes {other}"
                    assert other in records or record.state is State.BACKOFF, f"{record} overtakes {other}"
            for other in self.running:
                if self.of[other][0] is not life:
                    assert self.lane(other) != lane, f"{record} is dispatched beside {other}"
        self.ready += records

    def lane(self, record: Record) -> tuple[TopicPartition, bytes | None] | None:
        name = self.of[record][0].name
        if self.setup.ordering is Ordering.PARTITION:
            return name, None
        if self.setup.ordering is Ordering.KEY and record.key is not None:
            return name, record.key
        return None

    def _check(self) -> None:
        """What must be true after every step."""
        for index, capacity in enumerate(self.capacities):
            parts = [part for part in self.engine.parts.values() if part.intake.index == index]
            assert capacity.messages == sum(part.count for part in parts) >= 0
            assert capacity.bytes == sum(part.bytes for part in parts) >= 0
        for name, part in self.engine.parts.items():
            life = self.lives.get(name)
            if life is None or life.epoch != part.epoch:
                continue
            held = [record for record in part.ledger.outstanding if record.state is not State.ACKED]
            assert part.count == len(held)
            assert part.bytes == sum(record.size for record in held)
            received = [e for e in self.logs[name].entries if life.base <= e.offset < part.ledger.position]
            expected = [entry.offset for entry in received if entry.uid not in life.acked]
            assert [record.offset for record in held] == expected, f"{name}: the account differs"
            assert part.ledger.committable == (expected[0] if expected else part.ledger.position)
            assert part.running == sum(record.part is part for record in self.running)
        consumer = self.engine.consumers[0]
        assert consumer.running == len(self.ready) + len(self.running)
        if consumer.broken:
            self._check_probe(consumer)

    def _check_probe(self, consumer: ConsumerState) -> None:
        """While a dependency is away all is held, and there is someone to find out when it is back."""
        assert all(Reason.BREAKER in part.holds for part in self.engine.parts.values())
        if self.engine.draining:
            return
        probe = consumer.probe
        if probe is None or probe.part.closing:
            waiting = [record for intake in self.engine.intakes for record in intake.backoff]
            leaving = any(part.closing for part in self.engine.parts.values())
            assert leaving or any(record.part.only_broken() for record in waiting)
        else:
            assert probe.state in (State.BACKOFF, State.PROCESSING), f"{probe} probes"
            on_its_way = probe in probe.part.intake.backoff or probe in self.ready or probe in self.running
            assert on_its_way, f"{probe} probes"

    # ------------------------------------------------------------------------------------ all goes well now

    def settle(self) -> None:
        """From here on nothing fails: everything there is must be acknowledged, and then all is at rest.

        Or the bound is reached, if the run has one.
        """
        if not self.sound:
            return  # what has failed already is to be shown
        for index in range(len(self.capacities)):
            self.stall(index, over=True)
        self.deliver()
        if self.engine.halted:  # it may have heard of the fatal error only now
            self.crash()
            self.deliver()
        standing, before = 0, -1
        while standing < PATIENCE:
            acked = sum(len(life.acked) for life in self.lives.values())
            standing = standing + 1 if acked == before else 0
            before = acked
            for name in self.logs:
                if name in self.lives and self.lives[name].revoking:
                    self.close(name, lost=False)
                    self.deliver()
                self.assign(name)
                self.operator(name, held=False)
                self.commit(name, applied=True, answered=True)
                self.sought(name)
            self.deliver()
            for name in self.logs:
                self.poll(name, 50)
            while self.routes:
                self.publish(0, "confirm")
            self.deliver()
            while self.ready or self.running:
                while self.ready:
                    self.start(0)
                self.finish_all()
                self.deliver()
            self.deliver(wait=5.0)
            if self.bound_reached or self._all_done():
                break
        else:
            raise AssertionError(f"it does not come to an end: {list(self.engine.parts.values())}")
        self._stop()

    def _all_done(self) -> bool:
        if self.ready or self.running or self.routes or self.pending:
            return False
        return not any(life.reasons or life.outside for life in self.lives.values()) and all(
            entry.uid in self.lives[name].acked or entry.offset < self.lives[name].base
            for name, log in self.logs.items()
            for entry in log.entries
        )

    def _stop(self) -> None:
        engine = self.engine
        assert engine.idle()
        self.pending.append(ev.Drain())
        self.deliver()
        assert any(isinstance(effect, ev.Drained) for effect in self.effects)
        for name in self.logs:
            self.revoke(name)
        self.deliver()
        assert sum(isinstance(effect, ev.Quiet) for effect in self.effects) == len(self.logs)
        for name, log in self.logs.items():
            self.close(name, lost=False)
            assert self.bound_reached or (
                log.committed is not None and all(e.offset < log.committed[0] for e in log.entries)
            )
        self.deliver()
        assert [capacity.messages for capacity in self.capacities] == [0, 0]
        assert [capacity.bytes for capacity in self.capacities] == [0, 0]
        self.deliver(wait=100)
        self.deliver(wait=100)
        assert engine.next_due() is None
        assert engine.parts == {}
        consumer = engine.consumers[0]
        assert (consumer.running, consumer.zombies, consumer.held_heads) == (0, {}, {})
        assert not any(intake.backoff or intake.parts for intake in engine.intakes)
