"""The engine's invariants, under anything that a broker, a group, handlers and publishes may do.

- The committable offset never passes an offset that was received and is not ACKED.
- No offset is acknowledged by an older epoch.
- Nothing is dispatched twice while it is out, nothing before it is due, nothing while an operator holds it,
  nothing after a poller stood still.
- Order holds within a lane, and no lane starts beside a handler of an older epoch.
- What is buffered never exceeds the watermark by more than one fetch; capacity is what is not acknowledged,
  at every step, and zero at the end.
- A commit's metadata names exactly what is acknowledged beyond it: after a crash every other record is
  handled, and none of these.
- When nothing fails any more, everything is acknowledged and all comes to rest.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from streamloop.engine.lanes import Ordering
from streamloop.engine.retry import Failure, Kind
from tests.engine.driver import FATAL, ORDERS, OTHERS, PERMANENT, RETRY, SKIP, TRANSIENT, UNAVAILABLE
from tests.engine.world import Setup, World

if TYPE_CHECKING:
    from collections.abc import Callable

if TYPE_CHECKING:
    from streamloop.engine.events import TopicPartition

LONG = Failure(Kind.TRANSIENT, "builtins.ValueError", "later", "5" * 16, after=40.0)

ALL = (ORDERS, OTHERS, RETRY)
OUTCOMES = (None, None, TRANSIENT, TRANSIENT, LONG, PERMANENT, UNAVAILABLE, UNAVAILABLE, SKIP)

names = st.sampled_from(ALL)
sources = st.sampled_from([ORDERS, OTHERS])
keys = st.sampled_from([None, b"a", b"a", b"b"])
picks = st.integers(0, 30)
failures = st.sampled_from(OUTCOMES)
waits = st.sampled_from([0.0, 0.0, 0.05, 0.3, 1.0, 31.0, 61.0])
runs = st.lists(st.tuples(keys, st.sampled_from([100, 100, 3_000]), st.integers(0, 2)), max_size=10)
lengths = st.sampled_from([10, 20, 40, 80, 150, 300, 600])
setups = st.builds(
    Setup,
    ordering=st.sampled_from(list(Ordering)),
    concurrency=st.integers(1, 6),
    batch_size=st.sampled_from([0, 0, 0, 3]),
    retry_topic=st.booleans(),
    strict=st.booleans(),
    dead_letters=st.sampled_from([None, None, 2]),
    high=st.integers(4, 40),
    high_bytes=st.sampled_from([1_000, 20_000]),
    gap_limit=st.sampled_from([6, 20_000]),
    commit_interval=st.sampled_from([0.0, 1.0]),
    max_messages=st.sampled_from([None, None, None, 5, 40]),
)


class EngineMachine(RuleBasedStateMachine):
    """Whatever may happen, in any order, several things in one step of the engine or each in its own."""

    @initialize(setup=setups)
    def begin(self, setup: Setup) -> None:
        self.world = World(setup)
        for name in ALL:
            self.world.assign(name)
        self.world.deliver()
        for name in ALL:
            self.world.commit(name, applied=True, answered=True)
        self.world.deliver()

    # ---- broker

    @rule(name=sources, run=runs)
    def produce(self, name: TopicPartition, run: list[tuple[bytes | None, int, int]]) -> None:
        for key, size, gap in run:
            self.world.append(name, key, size, gap)

    @rule(name=names, keep=st.integers(0, 6), back=st.booleans())
    def leave_and_find_another_log(self, name: TopicPartition, keep: int, back: bool) -> None:
        self.world.close(name, lost=True)
        self.world.marker(name)
        self.world.truncate(name, keep)
        if back:
            self.world.assign(name)

    # ---- group

    @rule(name=names)
    def revoke(self, name: TopicPartition) -> None:
        self.world.revoke(name)

    @rule(name=names, lost=st.booleans(), back=st.booleans())
    def close(self, name: TopicPartition, lost: bool, back: bool) -> None:
        self.world.close(name, lost=lost)
        if back:
            self.world.assign(name)

    @rule(applied=st.booleans(), answered=st.booleans())
    def commit(self, applied: bool, answered: bool) -> None:
        for name in ALL:
            self.world.commit(name, applied=applied, answered=answered)

    @rule()
    def crash_and_restart(self) -> None:
        self.world.crash()
        for name in ALL:
            self.world.assign(name)
        self.world.deliver()

    # ---- poller

    @rule(name=names, most=st.integers(1, 12), race=st.booleans())
    def poll(self, name: TopicPartition, most: int, race: bool) -> None:
        self.world.poll(name, most, race=race)

    @rule(wait=waits)
    def poll_all(self, wait: float) -> None:
        for name in ALL:
            self.world.sought(name)
            self.world.poll(name, 10)
        self.world.deliver(wait)

    @rule(name=names, held=st.booleans())
    def operator(self, name: TopicPartition, held: bool) -> None:
        self.world.operator(name, held=held)

    @rule(index=st.integers(0, 1), over=st.booleans())
    def stall(self, index: int, over: bool) -> None:
        self.world.stall(index, over=over)

    # ---- handlers

    @rule(run=runs, most=st.integers(1, 12), outcomes=st.lists(failures, max_size=8))
    def handle(
        self, run: list[tuple[bytes | None, int, int]], most: int, outcomes: list[Failure | None]
    ) -> None:
        for number, (key, size, gap) in enumerate(run):
            self.world.append((ORDERS, OTHERS)[number % 2], key, size, gap)
        for name in ALL:
            self.world.poll(name, most)
        self.world.deliver()
        for outcome in outcomes:
            self.world.start(0)
            self.world.finish(-1, outcome)
        self.world.deliver()

    @rule(count=st.integers(1, 8))
    def start(self, count: int) -> None:
        for _ in range(count):
            self.world.start(0)

    @rule(at=picks, outcomes=st.lists(failures, min_size=1, max_size=6), wait=waits)
    def finish(self, at: int, outcomes: list[Failure | None], wait: float) -> None:
        for outcome in outcomes:
            self.world.finish(at, outcome)
        self.world.deliver(wait)

    @rule(at=picks)
    def fatal(self, at: int) -> None:
        if at == 0:
            self.world.finish(at, FATAL)

    @rule(count=st.integers(1, 5))
    def give_back(self, count: int) -> None:
        self.world.give_back(count)

    @rule(at=picks, failure=st.sampled_from([PERMANENT, PERMANENT, TRANSIENT, UNAVAILABLE]))
    def undecodable(self, at: int, failure: Failure) -> None:
        self.world.undecodable(at, failure)

    @rule(at=picks, hows=st.lists(st.sampled_from(["confirm", "confirm", "block", "unblock"]), max_size=5))
    def publish(self, at: int, hows: list[str]) -> None:
        for how in hows:
            self.world.publish(at, how)

    # ---- time

    @rule(wait=waits)
    def step(self, wait: float) -> None:
        self.world.deliver(wait)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


EngineMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestEngineInvariants = EngineMachine.TestCase


# ---------------------------------------------------------------------------- the same, longer and at random


def each(act: Callable[[World, TopicPartition], None]) -> Callable[[World, random.Random], None]:
    return lambda world, chance: act(world, chance.choice(ALL))


def produce(world: World, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 10)):
        gap = chance.choice((0, 0, 0, 1, 2))
        size = chance.choice((100, 100, 3_000))
        world.append(chance.choice((ORDERS, OTHERS)), chance.choice((None, b"a", b"b", b"c")), size, gap)


def start(world: World, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 8)):
        world.start(0)


def finish(world: World, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 6)):
        world.finish(chance.randrange(50), chance.choice(OUTCOMES))


def fail_alike(world: World, chance: random.Random) -> None:
    outcome = chance.choice(OUTCOMES)
    for _ in range(chance.randint(3, 12)):
        world.start(0)
        world.finish(0, outcome)
        if chance.random() < 0.5:
            world.deliver()


def change_log(world: World, chance: random.Random) -> None:
    name = chance.choice(ALL)
    world.close(name, lost=chance.random() < 0.5)
    world.marker(name)
    world.truncate(name, chance.randint(0, 6))


def restart(world: World, chance: random.Random) -> None:
    world.crash()
    for name in ALL:
        world.assign(name)
    world.deliver()


def turn(world: World, chance: random.Random) -> None:
    """An ordinary turn: all is polled, and some of it is handled, with any outcome."""
    for name in ALL:
        world.sought(name)
        world.poll(name, chance.randint(1, 8))
    world.deliver(chance.choice((0.0, 0.05, 1.0)))
    start(world, chance)
    finish(world, chance)
    world.deliver()


def mend(world: World, chance: random.Random) -> None:
    """What keeps partitions from flowing for long is over."""
    for index in (0, 1):
        world.stall(index, over=True)
    for name in ALL:
        if name in world.lives and world.lives[name].revoking:
            world.close(name, lost=False)
        world.assign(name)
        world.operator(name, held=False)
        world.sought(name)
    world.deliver(chance.choice((0.0, 5.0)))
    for name in ALL:
        world.commit(name, applied=True, answered=True)


ACTS: dict[str, tuple[int, Callable[[World, random.Random], None]]] = {
    "produce": (8, produce),
    "turn": (8, turn),
    "mend": (3, mend),
    "poll": (10, lambda w, c: w.poll(c.choice(ALL), c.randint(1, 12), race=c.random() < 0.2)),
    "seek": (5, each(World.sought)),
    "rewind": (1, lambda w, c: w.rewind(c.choice(ALL), c.randint(1, 5))),
    "start": (12, start),
    "start any": (3, lambda w, c: w.start(c.randrange(50))),
    "finish": (12, finish),
    "fail alike": (4, fail_alike),
    "succeed": (6, lambda w, c: w.finish_all()),
    "give back": (2, lambda w, c: w.give_back(c.randint(1, 5))),
    "undecodable": (2, lambda w, c: w.undecodable(c.randrange(50), c.choice((PERMANENT, TRANSIENT)))),
    "confirm": (10, lambda w, c: w.publish(c.randrange(50), "confirm")),
    "block": (3, lambda w, c: w.publish(c.randrange(50), c.choice(("block", "unblock")))),
    "commit": (8, lambda w, c: w.commit(c.choice(ALL), applied=c.random() < 0.8, answered=c.random() < 0.7)),
    "stall": (1, lambda w, c: w.stall(c.randrange(2), over=False)),
    "turn again": (2, lambda w, c: w.stall(c.randrange(2), over=True)),
    "operator": (2, lambda w, c: w.operator(c.choice(ALL), held=c.random() < 0.4)),
    "assign": (6, each(World.assign)),
    "revoke": (2, each(World.revoke)),
    "close": (2, lambda w, c: w.close(c.choice(ALL), lost=c.random() < 0.5)),
    "change log": (1, change_log),
    "restart": (1, restart),
    "step": (20, lambda w, c: w.deliver(c.choice((0.0, 0.0, 0.05, 0.3, 1.0, 29.5, 31.0)))),
}
"""What may happen, and how often."""


def simulate(setup: Setup, seed: int, length: int) -> None:
    """One run: half of what may happen is left out of it, so that the rest comes in long runs."""
    chance = random.Random(seed)
    world = World(setup)
    for name in ALL:
        world.assign(name)
    if chance.random() < 0.8:
        world.deliver()
        for name in ALL:
            world.commit(name, applied=True, answered=True)
    always = {"produce", "turn", "mend", "step"}
    acts = [act for act in ACTS if act in always or chance.random() < 0.5]
    for act in chance.choices(acts, [ACTS[act][0] for act in acts], k=length):
        ACTS[act][1](world, chance)
    world.settle()


@settings(max_examples=60)
@given(setups, st.integers(0, 2**32), lengths)
def test_invariants_hold_in_long_runs_and_all_is_acknowledged_when_nothing_fails_any_more(
    setup: Setup, seed: int, length: int
) -> None:
    simulate(setup, seed, length)
