"""Reading a range of a view as a task does, without a session: broken ranges and damaged logs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.native import log_lists
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import RequestRefused, StoreCorrupt, Unavailable
from escrowmq.pipeline.views import facts, log_events
from escrowmq.pipeline.views import reading as views
from escrowmq.pipeline.views.options import VIEWS, batch_options
from escrowmq.pipeline.views.ranges import pages, plan
from escrowmq.pipeline.views.rows import read_range
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import LogEventRow
from escrowmq.store.reading import log_sweep
from escrowmq.testing import InProcessBroker
from tests.spark import day
from tests.spark.test_view_streams import forget


def given(broker: InProcessBroker, view: str, **options: str) -> dict[str, str]:
    return {"view": view, "broker": broker.broker_address, **options}


def rows(options: dict[str, str]) -> list[dict[str, Any]]:
    """Return all rows of a view, range by range."""
    read, schema = batch_options(options), views.schema(options)
    batches = [batch for part in plan(read) for batch in read_range(read, schema, part)]
    return [row for batch in batches for row in batch.to_pylist()]


def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit each page of the log to a few bytes."""
    monkeypatch.setattr(log_lists, "PAGE_S_MAX", 0)
    monkeypatch.setattr(log_sweep, "BLOCK_BYTES", 400)
    for name in ("LOG_BYTES", "LOG_BYTES_BESIDE"):
        monkeypatch.setattr(log_lists, name, 400)


def test_names_of_columns_are_those_of_the_rows() -> None:
    others = ("F", "TYPE_CHECKING", "FACT_COLUMNS", "INSTANTS", "NO_CHECK_MS")
    constants = {name: value for name, value in vars(facts).items() if name.isupper()}
    named = {name.lower(): value for name, value in constants.items() if name not in others}
    assert all(name == value for name, value in named.items())
    told = {name for view in VIEWS.values() for name in view.columns}
    assert set(named) | set(facts.INSTANTS.values()) <= told


@pytest.mark.parametrize("name", [name for name, view in VIEWS.items() if view.has_ranges])
def test_a_broker_that_comes_back_between_pages_is_read_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pages(monkeypatch)
    with InProcessBroker() as broker:
        day.live(broker.broker_address)
        whole = rows(given(broker, name))
        options = given(broker, name)
        (part,) = plan(batch_options(options))
        found = []
        for answer in pages(batch_options(options), part, [facts.HEAD]):
            found += answer.batch.to_pylist()
            broker.restart()
        assert len(found) == len(whole)


def test_a_broker_is_waited_for_as_long_as_was_said() -> None:
    with InProcessBroker() as broker:
        day.live(broker.broker_address)
        options = given(broker, "halves", retryMs="20000")
        read, schema = batch_options(options), views.schema(options)
        (part,) = plan(read)
        broker.stop()
        back = threading.Timer(0.3, broker.start)
        back.start()
        try:
            found = [row for batch in read_range(read, schema, part) for row in batch.to_pylist()]
        finally:
            back.join()
        assert len(found) == 10
        broker.stop()
        began = time.monotonic()
        with pytest.raises(Unavailable, match="broker_unreachable"):
            list(pages(batch_options({**options, "retryMs": "0"}), part, []))
        assert time.monotonic() - began < 10


def test_a_read_that_retention_overtakes_is_an_error_unless_it_was_allowed(tmp_path: Path) -> None:
    with InProcessBroker(data=tmp_path) as broker:
        day.live(broker.broker_address)
        (part,) = plan(batch_options(given(broker, "halves")))
    forget(tmp_path)
    with InProcessBroker(data=tmp_path) as broker:
        part = type(part)(broker.broker_address, part.broker_name, part.start, part.end)
        options = given(broker, "halves")
        with pytest.raises(RequestRefused, match="data_lost"):
            list(read_range(batch_options(options), views.schema(options), part))
        with pytest.raises(RequestRefused, match="data_lost"):
            plan(batch_options({**options, "startOffset": "0"}))
        allowed = {**options, "failOnDataLoss": "false"}
        assert list(read_range(batch_options(allowed), views.schema(allowed), part)) == []
        # Retention carried the undecided half messages forward.
        assert [row["is_copy"] for row in rows({**allowed, "startOffset": "0"})] == [True] * 3
        assert rows(options) == rows(allowed)


def test_damage_is_an_error_unless_it_was_allowed_and_events_tell_of_it(tmp_path: Path) -> None:
    with InProcessBroker(data=tmp_path) as broker:
        day.live(broker.broker_address)
        with NativeCalls(broker.broker_address) as calls:
            victim = list(calls.rows(NativeCode.LIST_HALVES))[4].log_offset
        with (tmp_path / "store/commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(victim)
            log.write(b"????")
        with pytest.raises(StoreCorrupt, match="log_unreadable"):
            rows(given(broker, "halves"))
        left = rows(given(broker, "halves", failOnDataLoss="false"))
        assert len(left) == 9
        events = rows(given(broker, "events"))
        told = [row["log_offset"] for row in events if row["event"] == "unreadable"]
        assert told == [victim]


@pytest.mark.parametrize("frame_bytes_max", [0, 4096])
def test_events_are_those_that_the_broker_would_list(
    frame_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_events, "FRAME_BYTES_MAX", frame_bytes_max)
    with InProcessBroker() as broker:
        with NativeCalls(broker.broker_address) as calls:
            for number in range(50):
                half = day.hold(calls, f"plain-{number}", ledger="uuid" * (number % 2))
                resolution = "rollback" if number % 5 == 0 else "commit"
                day.decide(calls, resolution, half)
                if number % 20 == 0:
                    day.live(broker.broker_address, named=f"other-{number}")
            listed = list(calls.rows(NativeCode.LIST_EVENTS))
        expected = [
            {name: getattr(row, name) for name in LogEventRow.__struct_fields__} for row in listed
        ]
        columns = ",".join(LogEventRow.__struct_fields__)

        def told(**options: str) -> list[dict[str, Any]]:
            return rows(given(broker, "events", **{"columns": columns, **options}))

        assert told() == expected
        # Ranges that begin at any offset.
        assert told(rangeBytes="1000") == expected
        small_pages(monkeypatch)
        asked = count_lists(monkeypatch)
        assert told() == expected
        assert told(columns="event,topic") == [
            {"event": row["event"], "topic": row["topic"]} for row in expected
        ]
        # The task decodes plain rows itself, unless the frames are too large.
        is_asked_for_all = frame_bytes_max == 0
        assert (sum(asked) > len(expected)) == is_asked_for_all
        assert sum(asked) > 0


def count_lists(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the row counts of all pages that brokers list from now on."""
    listed: list[int] = []
    call_arrow = NativeCalls.call_arrow

    def counting(calls: NativeCalls, *arguments: Any) -> Any:  # noqa: ANN401 -- passed on
        answer = call_arrow(calls, *arguments)
        listed.append(answer.batch.num_rows)
        return answer

    monkeypatch.setattr(NativeCalls, "call_arrow", counting)
    return listed


def test_rows_come_in_batches_that_spark_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    with InProcessBroker() as broker:
        day.live(broker.broker_address)
        options = given(broker, "events", columns="broker")
        read, schema = batch_options(options), views.schema(options)
        (part,) = plan(read)
        (whole,) = read_range(read, schema, part)
        monkeypatch.setattr("escrowmq.pipeline.views.rows.BATCH_ROWS", 5)
        several = list(read_range(read, schema, part))
        assert len(several) > 2
        assert sum(batch.num_rows for batch in several) == whole.num_rows
        assert whole.to_pydict() == {"broker": [broker.broker_address] * whole.num_rows}


def test_a_broker_without_anything_has_no_rows() -> None:
    with InProcessBroker() as broker:
        assert [rows(given(broker, name)) for name in VIEWS] == [[]] * len(VIEWS)
