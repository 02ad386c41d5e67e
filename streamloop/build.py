"""Puts the parts of a run together: engine, core, publisher, and a poller for each Kafka Consumer."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka

from streamloop.core import Core
from streamloop.engine.consumer import ConsumerSpec
from streamloop.engine.engine import Engine, EngineConfig
from streamloop.engine.gate import Capacity
from streamloop.engine.lanes import Ordering
from streamloop.engine.retry import name_of_class
from streamloop.errors import DecodeError, PublishError
from streamloop.kafka import config
from streamloop.kafka.client_log import librdkafka_log
from streamloop.kafka.poller import Poller, PollerOptions
from streamloop.kafka.positions import StartPolicy, TopicLookup
from streamloop.kafka.publisher import Publisher
from streamloop.kafka.retry_wait import RetryWait
from streamloop.outcomes import Reject, Retry, Unavailable
from streamloop.preflight import make_admin
from streamloop.runners.base import HandlerTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamloop.assembly import Assembly, Bounds
    from streamloop.declare import HandlerBuild
    from streamloop.engine.events import TopicPartition
    from streamloop.engine.record import Record
    from streamloop.routing import Topics
    from streamloop.settings import Settings
    from streamloop.telemetry.client_spans import ClientSpans
    from streamloop.telemetry.tracing import Tracing

log = logging.getLogger("streamloop")

LONGEST_STALL: Final = 10.0
"""Seconds without a turn of a poller after which nothing is taken for granted, whatever the session."""
PRODUCER_ROOM: int = 1024 * 1024
"""Bytes that our Producers allow above the largest target's limit, so that the broker decides what fits."""

OWN_ERRORS = (DecodeError, HandlerTimeout, PublishError, Reject, Retry, Unavailable)
"""Errors of ours that any handler may fail with: they are counted from the beginning, at 0."""


@dataclass(slots=True)
class Parts:
    """What a run is made of."""

    engine: Engine
    core: Core
    publisher: Publisher
    pollers: list[Poller]
    capacities: list[Capacity]
    lookup: TopicLookup | None = None


def consumer_spec(build: HandlerBuild, topics: Topics) -> ConsumerSpec:
    """A handler's settings in the engine's form."""
    settings = build.settings
    sources = [topics.sources[name] for name in build.topics]
    rules = build.handler.rules
    listed = (*OWN_ERRORS, *rules.permanent, *rules.transient, *rules.unavailable, *rules.fatal)
    return ConsumerSpec(
        name=settings.name,
        ordering=Ordering(settings.ordering),
        concurrency=settings.concurrency,
        plan=settings.retry_plan(build.delay),
        dead_letters_per_minute=settings.dead_letter_max_per_minute,
        batch_size=build.handler.batch_size,
        topics=tuple(name for each in sources for name in (each.name, *topics.own_names_of(each))),
        error_types=tuple(dict.fromkeys(map(name_of_class, listed))),
    )


def build_engine(assembly: Assembly, topics: Topics, bounds: Bounds) -> tuple[Engine, list[Capacity]]:
    """The engine and the capacity of each intake: source topics first, retry and replay topics second."""
    settings = assembly.settings
    capacities = [
        Capacity(settings.high_watermark_messages, settings.high_watermark_bytes, settings.low_watermark)
    ]
    if topics.own_names:
        capacities.append(
            Capacity(
                settings.retry_high_watermark_messages,
                settings.retry_high_watermark_bytes,
                settings.low_watermark,
            )
        )
    engine = Engine(
        EngineConfig(
            consumers=[consumer_spec(build, topics) for build in assembly.consumers],
            role_of=topics.role,
            group=settings.group,
            commit_interval=settings.commit_interval,
            gap_limit=settings.gap_limit,
            lane_limit=settings.lane_limit,
            backoff_share=settings.backoff_share,
            dwell=settings.dwell,
            max_messages=bounds.max_messages,
            until_end=bounds.until_end,
        ),
        capacities,
    )
    return engine, capacities


def build_parts(
    assembly: Assembly,
    topics: Topics,
    bounds: Bounds,
    poller_ended: Callable[[BaseException | None], None],
    tracing: Tracing | None = None,
) -> Parts:
    """All parts, connected and not started. Called on the event loop."""
    settings = assembly.settings
    engine, capacities = build_engine(assembly, topics, bounds)
    core = Core(
        engine,
        assembly.consumers,
        topics,
        group=settings.group,
        clock=time.monotonic,
        wall=time.time,
        tracing=tracing,
    )
    core.step_log.keys = settings.log_keys
    limits = [facts.max_message_bytes for facts in topics.facts.values() if facts.max_message_bytes]
    largest = max(limits) + PRODUCER_ROOM if limits else None
    publisher = Publisher(
        config.producer_config(settings, message_max_bytes=largest),
        solo_config=config.solo_producer_config(settings, message_max_bytes=largest),
        deliver=core.take_reports,
        producer_factory=lambda properties: confluent_kafka.Producer(properties, logger=librdkafka_log),
    )
    # A client of its own: pollers ask it at each assignment, and must not wait behind anybody else.
    lookup = TopicLookup(make_admin(settings))
    pollers = [
        make_poller(
            assembly, topics, core, capacity, lookup, poller_ended, retries=index > 0, tracing=tracing
        )
        for index, capacity in enumerate(capacities)
    ]
    core.connect(pollers, publisher)
    return Parts(engine, core, publisher, pollers, capacities, lookup)


def make_preparer(
    topics: Topics,
    group: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> Callable[[TopicPartition, list[Record]], None]:
    """What reads our headers from records of our own retry topics, on the poller's thread."""
    return RetryWait(topics.delay_of, group, anew=topics.is_replay, clock=clock, wall=wall)


def stall_after(settings: Settings) -> float:
    """Seconds without a turn of a poller after which the group may have gone on without this member.

    Half the session time-out. With group.protocol=consumer the brokers decide that one (45 s unless they were
    told otherwise), and it is at most 10 s.
    """
    session = settings.kafka_property("consumer", "session.timeout.ms")
    if session is None:
        session = config.shortened_session_ms(settings)
    return LONGEST_STALL if session is None else min(LONGEST_STALL, float(session) / 1000 / 2)


def make_consumer(
    settings: Settings,
    properties: Callable[[Settings, config.Protocol], dict[str, Any]],
    protocol: config.Protocol,
    callbacks: dict[str, Any],
) -> Any:
    """A Consumer of this group protocol, with these callbacks. KafkaException: librdkafka refuses it."""
    shorter = config.shortened_session_ms(settings)
    if protocol == "classic" and shorter is not None:
        log.warning(
            "the classic protocol needs a session.timeout.ms of at most max.poll.interval.ms: %d is used "
            "instead of the default %d; set kafka.consumer.session.timeout.ms, or a longer "
            "max.poll.interval.ms",
            shorter,
            config.CLASSIC_SESSION_MS,
            extra={"kind": "settings"},
        )
    return confluent_kafka.Consumer({**properties(settings, protocol), **callbacks}, logger=librdkafka_log)


def make_poller(
    assembly: Assembly,
    topics: Topics,
    core: Core,
    capacity: Capacity,
    lookup: TopicLookup,
    ended: Callable[[BaseException | None], None],
    *,
    retries: bool,
    tracing: Tracing | None = None,
) -> Poller:
    """The poller of the source topics, or of the retry topics."""
    settings = assembly.settings
    spans: ClientSpans | None = None
    if tracing is not None and settings.trace_clients:
        spans = tracing.client_spans(f"{settings.group}.retry" if retries else settings.group)
    policies = {
        topic: StartPolicy(build.settings.start, build.settings.out_of_range)
        for build in assembly.consumers
        for topic in build.topics
    }
    properties = config.retry_consumer_config if retries else config.consumer_config

    def policy(topic: str) -> StartPolicy:
        own = policies[topics.source_of(topic).name]
        # These are read from their beginning: what is there was routed or replayed by this group.
        return StartPolicy("earliest", own.out_of_range) if retries else own

    return Poller(
        name="retry" if retries else "source",
        intake=int(retries),
        topics=topics.own_names if retries else list(topics.sources),
        capacity=capacity,
        options=PollerOptions(
            group=settings.group,
            protocol=settings.group_protocol,
            policy=policy,
            dwell=settings.dwell,
            revoke_wait=settings.revoke_wait,
            spans=spans,
            stall_after=stall_after(settings),
        ),
        make_consumer=partial(make_consumer, settings, properties),
        lookup=lookup,
        deliver=core.deliver,
        heartbeat=core.heartbeat,
        prepare=make_preparer(topics, settings.group) if retries else None,
        on_exit=ended,
    )
