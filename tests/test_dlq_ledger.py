"""What the ledger says of a dead letter, in little memory, whatever its records hold."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamloop.dlq.ledger import IMPORTED, OPEN, PURGED, REPLAYED, LedgerView, entry_key
from streamloop.dlq.offsets import PIECE, OffsetSet
from streamloop.dlq.runs import FRESH, INTERRUPTED, RUNNING, RunRecord
from streamloop.dlq.session import InProgressError, refuse_if_busy
from streamloop.kafka.topics import UNKNOWN_ID

ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def value(state: str, **more: Any) -> bytes:
    return json.dumps({"state": state, "run": "r1", **more}).encode()


class TestOffsets:
    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 3 * PIECE) | st.integers(0, 2**63 - 1))))
    def test_it_is_a_set(self, steps: list[tuple[bool, int]]) -> None:
        found, wanted = OffsetSet(), set()
        for adds, offset in steps:
            if adds:
                assert found.add(offset) == (offset not in wanted)
                wanted.add(offset)
            else:
                assert found.discard(offset) == (offset in wanted)
                wanted.discard(offset)
            assert (offset in found) == (offset in wanted)
        assert list(found) == sorted(wanted)
        assert len(found) == len(wanted)

    def test_a_million_dense_offsets_take_less_than_a_mebibyte(self) -> None:
        import tracemalloc

        tracemalloc.start()
        found = OffsetSet()
        for offset in range(5_000_000, 6_000_000):
            found.add(offset)
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(found) == 1_000_000
        assert size < 1024 * 1024


class TestView:
    def test_states_by_topic_id_partition_and_offset(self) -> None:
        view = LedgerView("billing.replays")
        view.take(entry_key(ID, "dlq", 0, 5), value("replayed"))
        view.take(entry_key(ID, "dlq", 1, 5), value("purged"))
        view.take(entry_key("another", "dlq", 0, 6), value("imported"))
        assert view.state_at(ID, "dlq", 0, 5) == REPLAYED
        assert view.state_at(ID, "dlq", 1, 5) == PURGED
        assert view.state_at(ID, "dlq", 0, 6) == OPEN  # the topic was made anew
        assert view.state_at("another", "dlq", 0, 6) == IMPORTED
        assert view.counts == {REPLAYED: 1, PURGED: 1, IMPORTED: 1}
        view.take(entry_key(ID, "dlq", 0, 5), None)
        assert view.state_at(ID, "dlq", 0, 5) == OPEN

    def test_without_topic_ids_the_name_stands_for_it(self) -> None:
        view = LedgerView("billing.replays")
        view.take(entry_key(UNKNOWN_ID, "dlq/odd", 0, 5), value("replayed"))
        assert view.state_at(UNKNOWN_ID, "dlq/odd", 0, 5) == REPLAYED
        assert view.state_at(UNKNOWN_ID, "other", 0, 5) == OPEN

    def test_a_letter_purged_after_its_replay_is_purged_whatever_compaction_left(self) -> None:
        for records in ([value("replayed"), value("purged")], [value("purged")]):
            view = LedgerView("billing.replays")
            for each in records:
                view.take(entry_key(ID, "dlq", 0, 1), each)
            assert view.state_at(ID, "dlq", 0, 1) == PURGED

    @given(st.binary(max_size=60) | st.none(), st.binary(max_size=60) | st.none())
    def test_what_it_can_t_read_holds_nothing_back_and_never_raises(
        self, key: bytes | None, raw: bytes | None
    ) -> None:
        view = LedgerView("billing.replays")
        view.take(key, raw)
        view.take(b"run/x", raw)
        view.take(entry_key(ID, "dlq", 0, 1), raw)
        assert view.state_at(ID, "dlq", 0, 1) == OPEN
        view.take(entry_key(ID, "dlq", 0, 1), b'{"state": "of a later version"}')
        assert view.state_at(ID, "dlq", 0, 1) == OPEN


class TestRuns:
    def record(self) -> RunRecord:
        return RunRecord.new("replay", "ada", described="all dead letters", target="there")

    def test_a_run_goes_through_the_ledger_and_back(self) -> None:
        run = self.record()
        view = LedgerView("billing.replays")
        view.take(run.key, run.encode())
        assert view.runs == {run.run: run}
        assert view.open_runs() == [run]
        run.state = INTERRUPTED
        view.take(run.key, run.encode())
        assert view.open_runs() == []
        view.take(run.key, None)
        assert view.runs == {}

    @given(
        st.dictionaries(
            st.sampled_from(["run", "kind", "state", "pid", "started_at", "counts", "topics", "settles"]),
            st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([1]) | st.just({}),
        )
    )
    def test_a_run_of_another_version_is_read_or_left_out(self, found: dict[str, Any]) -> None:
        whole = self.record().to_json() | found
        read = RunRecord.from_json(whole)
        if read is not None:
            assert isinstance(read.run, str)
            assert not isinstance(read.pid, bool)
        assert RunRecord.from_json(found) is None  # what must be there is not

    def test_courtesy_is_for_runs_that_were_heard_of_lately(self) -> None:
        run = self.record()
        view = LedgerView("billing.replays")
        view.take(run.key, run.encode())
        try:
            refuse_if_busy(view, run.heartbeat_at + FRESH - 1)
        except InProgressError as error:
            said = str(error)
        assert said.startswith(f"Not started: ada on {run.host} (pid {run.pid}, replay {run.run}, since ")
        assert "--takeover" in said
        refuse_if_busy(view, run.heartbeat_at + FRESH + 1)
        assert run.state == RUNNING
        assert run.is_alive(run.heartbeat_at - 3600)  # the clock there is ahead of ours
