"""The publisher: one thread that owns the Producers and sees each record through to a verdict.

What it is for: retry, dead-letter and handlers' own records go out here. A request stays outstanding until
the broker confirmed its record (DELIVERED) or refused that very record (TOO_LARGE, REFUSED). Everything else
(topic missing or forbidden, broker gone, disk full, too few replicas, time-out) is no verdict: it is reported
BLOCKED once and tried again for ever.

What it must never do: lose a request silently, block its caller, or take one record's fault for another's.

What calls it: the app's event loop calls submit() and cancel(), and gets batches of reports through
``deliver``.

There are two channels, each with its own Producer: the main one, and one that sends each record in a batch of
its own, made when first needed. A record that failed with its batch goes through the second: only there is an
error a verdict on it. What can't be written waits in a block of its target (publish_blocks.py). When a
Producer breaks (a fatal error) it is replaced, and what has no report is sent again, so that a duplicate is
possible.

Bounds. The table of outstanding requests has no limit of its own: it holds what the caller submitted and has
no verdict yet, which the Consumers' watermarks bound, as a message counts until it is acknowledged. The
Producer's queue is bounded by its configuration (queue.buffering.max.kbytes); when it is full, requests wait
here, in order.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import confluent_kafka
from confluent_kafka import KafkaException

from streamloop.kafka.produce_errors import (
    FATAL,
    INVALID_ARG,
    LOCAL_REFUSALS,
    MSG_TIMED_OUT,
    REMEMBERED,
    Meaning,
    meaning_of,
)
from streamloop.kafka.producer_channel import ProducerChannel, sentence
from streamloop.kafka.publish_blocks import BlockedTarget, Blocks, Entry
from streamloop.kafka.publishing import PublishCounters, PublishRequest, Report, ReportKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["BlockedTarget", "Publisher"]

BACKOFF_FIRST_S = 0.5
BACKOFF_CAP_S = 30.0
POLL_S = 0.01
"""How long one poll for reports may take; also how long a new request may wait behind it."""
IDLE_S = 1.0
"""With nothing in flight the client is still polled this often: log, error and token callbacks run there."""
CLOSE_MARGIN_S = 2.0
"""What close() adds to its time-out for the thread to put its Producers away."""
METADATA_S = 0.5
"""How long a turn may wait for the metadata of a topic that the client believes to be missing or denied."""
SENDS_PER_TURN = 10_000
"""So that reports are read, and the heartbeat is stamped, while a large backlog is sent."""


class Publisher:
    """Publishes requests, for ever if need be, and reports what became of each.

    ``config`` are the librdkafka properties of the Producer, whole. Its ``message.max.bytes`` has to be
    larger than the targets' max.message.bytes, so that the broker decides what is too large; records that are
    placed by key need ``partitioner``. ``solo_config`` are those of the Producer that sends records alone
    (default: the same with a batch of one record and no linger). ``error_cb`` of both is replaced.
    ``deliver`` gets batches of reports on the publisher's thread and has to return soon. ``jitter`` gives
    numbers from 0 to 1.

    Raises nothing when the broker can't be reached: requests then become BLOCKED.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        *,
        solo_config: Mapping[str, object] | None = None,
        deliver: Callable[[list[Report]], None],
        clock: Callable[[], float] = time.monotonic,
        producer_factory: Callable[[dict[str, Any]], Any] = confluent_kafka.Producer,
        jitter: Callable[[], float] = random.random,
        log: logging.Logger | None = None,
    ) -> None:
        if solo_config is None:
            solo_config = {**config, "batch.num.messages": 1, "linger.ms": 0}
        self.counters = PublishCounters()
        self.blocked: tuple[BlockedTarget, ...] = ()
        """What takes no records now: a snapshot, replaced whole, for the status page."""
        self.last_turn = clock()
        """The thread's heartbeat: when its last turn began, on ``clock``."""
        self.failure: BaseException | None = None
        """Set when the thread died of an unexpected error: nothing is published any more."""
        self._deliver = deliver
        self._clock = clock
        self._jitter = jitter
        self._log = log or logging.getLogger("streamloop.publisher")
        self._main = ProducerChannel("main", config, producer_factory)
        self._solo = ProducerChannel("solo", solo_config, producer_factory)
        self._channels = (self._main, self._solo)
        self._blocks = Blocks(
            backoff=self._backoff,
            release=lambda entry: self._channel_of(entry).push(entry),
            blocked=lambda entry, code, reason: self._report_state(entry, ReportKind.BLOCKED, code, reason),
            unblocked=lambda entry: self._report_state(entry, ReportKind.UNBLOCKED, 0, ""),
            log=self._log,
        )
        self._inbox: deque[tuple[Sequence[PublishRequest], Sequence[int]]] = deque()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._close_at: float | None = None
        self._by_id: dict[int, Entry] = {}
        self._next_seq = 0
        self._reports: list[Report] = []

    # ------------------------------------------------------------------------------------------ any thread

    def start(self) -> None:
        """Start the thread. Returns at once; the broker need not be there. Raises RuntimeError the second
        time."""
        if self._thread is not None:
            raise RuntimeError("the publisher was started already")
        self._thread = threading.Thread(target=self._run, name="streamloop-publisher", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[PublishRequest]) -> None:
        """Take requests; never blocks. They are sent in this order, as far as their topics are not blocked.

        Raises RuntimeError after close(), or when the thread has died: nobody would report on them.
        """
        if self._close_at is not None:
            raise RuntimeError("the publisher is closed: it takes no more records")
        if self.failure is not None:
            raise RuntimeError("the publisher's thread has died: it takes no more records") from self.failure
        self._inbox.append((list(requests), ()))
        self._wake.set()

    def cancel(self, ids: Iterable[int]) -> None:
        """These are no longer wanted (their partition left): dropped unless already handed to the client.

        No report follows, also not of those that were. Ids that are not outstanding are ignored.
        """
        self._inbox.append(((), list(ids)))
        self._wake.set()

    def close(self, timeout: float) -> list[int]:
        """Wait up to ``timeout`` seconds for reports, end the thread, and return the ids that have none.

        Does not wait for what is blocked. Returns within ``timeout`` + 2 s, also when the broker is gone.
        """
        if self._close_at is None:
            self._close_at = self._clock() + max(0.0, timeout)
        self._wake.set()
        if self._thread is not None:
            self._thread.join(max(0.0, timeout) + CLOSE_MARGIN_S)
        if not self.is_alive:
            self._take_inbox()  # what came too late for the last turn
        return list(self._by_id)

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    # --------------------------------------------------------------------------------- the publisher's thread

    def _run(self) -> None:
        try:
            while not self._is_finished():
                self._rest()
                self.turn()
        except BaseException as error:  # noqa: BLE001 - whoever watches the thread has to learn of its end
            self.failure = error
            self._log.critical("the publisher's thread died: nothing is published any more", exc_info=True)
        finally:
            for channel in self._channels:
                channel.put_away()

    def _is_finished(self) -> bool:
        if self._close_at is None:
            return False
        if self._clock() >= self._close_at:
            return True
        if self._inbox:
            return False
        return all(e.block is not None and e.block.probe is not e for e in self._by_id.values())

    def _rest(self) -> None:
        """With nothing to send and nothing in flight: sleep until someone calls, or something is due."""
        if not self._main.in_flight and not self._solo.in_flight:
            now = self._clock()
            due = [now + IDLE_S]
            due += [
                now if channel.is_open else channel.retry_at for channel in self._channels if channel.ready
            ]
            probe = self._blocks.next_probe()
            if probe is not None:
                due.append(probe)
            if self._close_at is not None:
                due.append(self._close_at)
            if min(due) > now:
                self._wake.wait(min(due) - now)
        self._wake.clear()  # before the inbox is read: what comes meanwhile wakes the next turn

    def turn(self) -> None:
        """Take requests, send what may be sent, read reports, pass them on.

        The thread calls it for ever. Without start() it may be called instead, by one thread.
        """
        now = self.last_turn = self._clock()
        self._take_inbox()
        self._push_probes(now)
        for channel in self._channels:
            self._send_ready(channel, now)
        for channel in self._channels:
            if channel.is_open and channel.broken is None:
                channel.poll(POLL_S if channel.in_flight else 0)
        now = self._clock()
        for channel in self._channels:
            self._take_reports(channel, now)
            if channel.broken is not None:
                self._replace(channel, now)
        self.counters.outstanding = len(self._by_id)
        if self._blocks.changed:
            self._blocks.changed = False
            self.blocked = self._blocks.snapshot()
        self._pass_on()

    def _take_inbox(self) -> None:
        while self._inbox:
            requests, cancelled = self._inbox.popleft()
            for request in requests:
                if request.id in self._by_id:
                    self._log.error(
                        "publish request %d was submitted twice: the first is dropped", request.id
                    )
                    self._cancel(request.id)
                entry = Entry(self._next_seq, request)
                self._next_seq += 1
                self._by_id[request.id] = entry
                self._main.push(entry)
            for request_id in cancelled:
                self._cancel(request_id)

    def _cancel(self, request_id: int) -> None:
        entry = self._by_id.pop(request_id, None)
        if entry is not None:
            entry.cancelled = True
            if entry.block is not None and entry.block.probe is not entry:
                self._blocks.gone(entry)

    # -- sending

    def _channel_of(self, entry: Entry) -> ProducerChannel:
        return self._solo if entry.alone else self._main

    def _push_probes(self, now: float) -> None:
        answers = True
        for probe in self._blocks.take_probes(now):
            self.counters.probes += 1
            channel = self._channel_of(probe)
            channel.push(probe)
            if answers and channel.is_open and probe.block is not None and probe.block.code in REMEMBERED:
                answers = channel.refresh(probe.request.topic, METADATA_S)

    def _send_ready(self, channel: ProducerChannel, now: float) -> None:
        if not channel.ready or channel.broken is not None or not self._open(channel, now):
            return
        for _ in range(min(SENDS_PER_TURN, len(channel.ready))):
            entry = channel.pop()
            if entry.cancelled:
                self._blocks.gone(entry)
            elif not self._blocks.must_wait(entry) and not self._send(channel, entry, now):
                channel.push(entry)  # first in line again
                return

    def _send(self, channel: ProducerChannel, entry: Entry, now: float) -> bool:
        """Hand one record to the client. False: it takes nothing more now."""
        try:
            channel.produce(entry)
        except BufferError:
            return False
        except KafkaException as exception:
            error = exception.args[0]
            meaning = meaning_of(error.code())
            if error.fatal() or meaning is Meaning.PRODUCER_BROKEN:
                channel.broken = sentence(exception)
                return False
            self._count_failure(error.code())
            if meaning is Meaning.BATCH_TOO_LARGE:  # the client's own limit, applied to this record alone
                self._refuse_locally(entry, ReportKind.TOO_LARGE, error.code(), sentence(exception))
            elif error.code() in LOCAL_REFUSALS:
                self._refuse_locally(entry, ReportKind.REFUSED, error.code(), sentence(exception))
            else:
                self._failed(entry, error.code(), sentence(exception), now)
        except (TypeError, ValueError) as exception:  # nothing that the client can encode
            self._count_failure(INVALID_ARG)
            self._refuse_locally(entry, ReportKind.REFUSED, INVALID_ARG, sentence(exception))
        else:
            entry.sent_at = now
            self.counters.sent_alone += entry.alone
        return True

    def _open(self, channel: ProducerChannel, now: float) -> bool:
        if channel.is_open:
            return True
        if now < channel.retry_at:
            if channel.breaks > 1:
                self._report_down(channel)
            return False
        try:
            channel.open()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again and reported
            self._down(channel, sentence(error), now)
            return False
        return True

    # -- reports

    def _take_reports(self, channel: ProducerChannel, now: float) -> None:
        while channel.reported:
            generation, seq, error, message = channel.reported.popleft()
            if generation != channel.generation or seq not in channel.in_flight:
                self.counters.late_reports += 1
                continue
            if error is not None:
                self._count_failure(error.code())
                if error.fatal() or meaning_of(error.code()) is Meaning.PRODUCER_BROKEN:
                    channel.broken = channel.broken or f"{error.name()}: {error.str()}"
                if channel.broken is not None:
                    continue  # no verdict of a broken Producer counts: it stays in flight, and is sent again
            entry = channel.in_flight.pop(seq)
            if entry.cancelled:
                self.counters.late_reports += 1
            self.counters.sent(
                entry.request.topic, error.code() if error is not None else 0, now - entry.sent_at
            )
            if error is None:
                self.counters.published += 1
                self._end(entry, ReportKind.DELIVERED, message.partition(), message.offset(), 0, "")
                self._recovered(channel)
                self._blocks.answered(entry, now)
                continue
            reason = f"{error.name()}: {error.str()}"
            if error.code() == MSG_TIMED_OUT and channel.last_error:
                reason = f"{reason} ({channel.last_error})"
            self._failed(entry, error.code(), reason, now)

    def _failed(self, entry: Entry, code: int, reason: str, now: float) -> None:
        meaning = meaning_of(code)
        if meaning in (Meaning.BATCH_TOO_LARGE, Meaning.BATCH_REFUSED, Meaning.UNSENT):
            if entry.alone and meaning is not Meaning.UNSENT:
                kind = ReportKind.TOO_LARGE if meaning is Meaning.BATCH_TOO_LARGE else ReportKind.REFUSED
                self._end(entry, kind, -1, -1, code, reason)
                self._blocks.answered(entry, now)
            elif entry.cancelled:
                self._blocks.gone(entry)
            else:
                entry.alone = entry.alone or meaning is not Meaning.UNSENT
                self._channel_of(entry).push(entry)
        else:
            self._blocks.failed(entry, code, reason, now)

    def _refuse_locally(self, entry: Entry, kind: ReportKind, code: int, reason: str) -> None:
        self._blocks.gone(entry)  # the broker did not answer: as a probe it said nothing
        self._end(entry, kind, -1, -1, code, reason)

    def _end(
        self, entry: Entry, kind: ReportKind, partition: int, offset: int, code: int, reason: str
    ) -> None:
        if not entry.cancelled:
            request = entry.request
            del self._by_id[request.id]
            where = partition if partition >= 0 else request.partition
            self._reports.append(Report(request.id, kind, request.topic, where, offset, code, reason))

    def _report_state(self, entry: Entry, kind: ReportKind, code: int, reason: str) -> None:
        request = entry.request
        self._reports.append(Report(request.id, kind, request.topic, request.partition, -1, code, reason))

    def _count_failure(self, code: int) -> None:
        failures = self.counters.failures
        failures[code] = failures.get(code, 0) + 1

    def _backoff(self, attempts: int) -> float:
        """Seconds until the next try: doubling to the cap; its upper half is random, so that members
        differ."""
        full = min(BACKOFF_CAP_S, BACKOFF_FIRST_S * 2.0 ** min(attempts - 1, 16))
        return full * (0.5 + 0.5 * self._jitter())

    # -- a broken Producer

    def _replace(self, channel: ProducerChannel, now: float) -> None:
        """Put the broken Producer away; what has no report is sent again by the next one."""
        reason = channel.broken or ""
        channel.put_away()
        self._take_reports(channel, now)
        channel.broken = None
        unreported, channel.in_flight = channel.in_flight, {}
        for entry in unreported.values():
            channel.push(entry)
        self.counters.replaced_producers += 1
        self._down(channel, reason, now)

    def _down(self, channel: ProducerChannel, reason: str, now: float) -> None:
        channel.breaks += 1
        channel.last_error = reason
        channel.retry_at = now + self._backoff(channel.breaks)
        self._log.error(
            "the %s Producer is replaced in %.1f s, and what has no report is sent again: %s",
            channel.name,
            channel.retry_at - now,
            reason,
        )
        if channel.breaks > 1:
            self._report_down(channel)

    def _report_down(self, channel: ProducerChannel) -> None:
        """One Producer after the other breaks: what waits for them is blocked, so that its owner knows."""
        for _, entry in channel.ready:
            if not entry.cancelled and not entry.reported_blocked:
                entry.reported_blocked = True
                reason = f"the Producer breaks again and again: {channel.last_error}"
                self._report_state(entry, ReportKind.BLOCKED, FATAL, reason)

    def _recovered(self, channel: ProducerChannel) -> None:
        if channel.breaks > 1:
            for entry in self._by_id.values():
                if entry.reported_blocked and entry.block is None and self._channel_of(entry) is channel:
                    entry.reported_blocked = False
                    self._report_state(entry, ReportKind.UNBLOCKED, 0, "")
        channel.breaks = 0
        channel.last_error = ""

    def _pass_on(self) -> None:
        if self._reports:
            reports, self._reports = self._reports, []
            try:
                self._deliver(reports)
            except Exception:  # noqa: BLE001 - the receiver's fault must not end this thread
                # The receiver is gone (its loop has ended). Without reports nothing is acknowledged.
                self._log.exception("%d publish reports could not be passed on", len(reports))
