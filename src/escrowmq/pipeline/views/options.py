"""The views of a broker's facts, and the options of a read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from escrowmq.pipeline.options import Options, bad_option
from escrowmq.pipeline.views.columns import ViewColumn, view_columns
from escrowmq.protocol.native.headers import LogRangeHeader
from escrowmq.protocol.native.requests import NATIVE_REQUESTS, NativeCode
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.transaction.states import State

RANGE_ROWS = 250_000
RANGE_BYTES = 64 * 1024 * 1024
"""The approximate default size of one task's read, in rows or in bytes of the log."""

BATCH_BYTES = 1024 * 1024 * 1024
"""The most bytes of each broker's log that one batch of a stream reads."""

RETRY_MS = 3_000
STREAM_RETRY_MS = 30_000
"""How long to wait for an unavailable broker. A stream waits longer, since no caller retries it."""

EVENTS = "events"
COMPARISON = "comparison"
EARLIEST = "earliest"
LATEST = "latest"

_STATES = tuple(state.label for state in State)
_UNDECIDED = (State.PREPARED.label, State.PARKED.label)
UNDECIDED = "undecided"
"""The word for all states without a decision."""

_COMMON = ("view", "broker", "columns", "failOnDataLoss", "retryMs")
_OF_STREAMS = ("startingOffsets", "maxBytesPerBatch", "rangeBytes", "availableNow")
_OF_LOG = ("startOffset", "endOffset", "rangeBytes")
_OF_TABLE = ("startOffset", "endOffset", "rangeRows", "states", "withIds")


@dataclass(frozen=True, kw_only=True)
class FactView:
    """One kind of facts."""

    name: str
    code: NativeCode

    @property
    def rows(self) -> type[NativeRow]:
        """The rows that the broker returns."""
        rows = NATIVE_REQUESTS[self.code].answer_rows
        assert rows is not None
        return rows

    @property
    def columns(self) -> dict[str, ViewColumn]:
        """All columns by name: where and when they were read, then the broker's fields."""
        return {column.name: column for column in view_columns(self.rows)}

    @property
    def is_of_log(self) -> bool:
        """Whether its ranges are log offsets; otherwise they are half offsets."""
        return NATIVE_REQUESTS[self.code].header is LogRangeHeader

    @property
    def has_ranges(self) -> bool:
        """Whether a read goes by ranges; otherwise each broker's rows are one short list."""
        return self.name != COMPARISON

    @property
    def batch_options(self) -> tuple[str, ...]:
        """The options of a batch read."""
        if not self.has_ranges:
            return _COMMON
        return (*_COMMON, *(_OF_LOG if self.is_of_log else _OF_TABLE))


VIEWS = {
    view.name: view
    for view in (
        FactView(name="transactions", code=NativeCode.LIST_TRANSACTIONS),
        FactView(name="halves", code=NativeCode.LIST_HALVES),
        FactView(name="ops", code=NativeCode.LIST_OPS),
        FactView(name="checks", code=NativeCode.LIST_CHECKS),
        FactView(name=EVENTS, code=NativeCode.LIST_EVENTS),
        FactView(name=COMPARISON, code=NativeCode.LIST_COMPARISON),
    )
}


@dataclass(frozen=True)
class ReadOffsets:
    """Where a read begins or ends: one offset for all brokers, or one for each by name."""

    every: int | None = None
    by_name: tuple[tuple[str, int], ...] = ()

    def of(self, broker: str) -> int | None:
        """The offset for the broker of this name; None if none is given."""
        return dict(self.by_name).get(broker, self.every)


@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """The checked options of one read. They go to the tasks."""

    view: FactView
    brokers: tuple[str, ...]
    #: The requested columns, in order.
    columns: tuple[str, ...]
    fails_on_data_loss: bool
    patience_s: float
    range_rows: int
    range_bytes: int
    states: tuple[str, ...]
    with_ids: bool
    start: ReadOffsets
    end: ReadOffsets
    #: Streams only: EARLIEST, LATEST, or else ``start``.
    starting: str
    batch_bytes: int
    #: Whether the user gave ``batch_bytes``.
    is_batch_limited: bool
    #: The trigger, as the user gives it for versions of Spark that do not pass it on; None if not
    #: given.
    available_now: bool | None

    @property
    def is_of_undecided(self) -> bool:
        """Whether the read wants only undecided transactions."""
        return set(self.states) <= set(_UNDECIDED)


def batch_options(given: Mapping[str, str]) -> ViewOptions:
    """Parse the options of a batch read."""
    view = _view(given)
    return _read(view, Options(given, view.batch_options), RETRY_MS)


def stream_options(given: Mapping[str, str]) -> ViewOptions:
    """Parse the options of a stream read."""
    view = _view(given)
    if not view.is_of_log:
        streams = ", ".join(name for name, one in VIEWS.items() if one.is_of_log)
        raise bad_option("view", f"one of {streams} can be a stream", view.name)
    return _read(view, Options(given, (*_COMMON, *_OF_STREAMS)), STREAM_RETRY_MS)


def any_options(given: Mapping[str, str]) -> ViewOptions:
    """Parse options before the kind of read is known: Spark asks for the columns first."""
    known = (*_COMMON, *_OF_LOG, *_OF_TABLE, *_OF_STREAMS)
    return _read(_view(given), Options(given, known), RETRY_MS)


def _view(given: Mapping[str, str]) -> FactView:
    # The caller has checked that the view exists.
    return VIEWS[given.get("view", "").lower()]


def _read(view: FactView, options: Options, retry_ms: int) -> ViewOptions:
    starting = options.text("startingOffsets", EARLIEST).strip()
    is_word = starting.lower() in (EARLIEST, LATEST)
    return ViewOptions(
        view=view,
        brokers=options.brokers(),
        columns=_columns(view, options.names("columns")),
        fails_on_data_loss=options.flag("failOnDataLoss", default=True),
        patience_s=options.whole("retryMs", retry_ms, low=0, high=3_600_000) / 1_000,
        range_rows=options.whole("rangeRows", RANGE_ROWS, low=1, high=2**31),
        range_bytes=options.whole("rangeBytes", RANGE_BYTES, low=1, high=2**40),
        states=_states(options.names("states")),
        with_ids=options.flag("withIds", default=True),
        start=_offsets("startOffset", options.text("startOffset", ""))
        if is_word
        else _offsets("startingOffsets", starting),
        end=_offsets("endOffset", options.text("endOffset", "")),
        starting=starting.lower() if is_word else "",
        batch_bytes=options.whole("maxBytesPerBatch", BATCH_BYTES, low=1, high=2**50),
        is_batch_limited=options.is_given("maxBytesPerBatch"),
        available_now=options.flag_or_none("availableNow"),
    )


def _columns(view: FactView, names: tuple[str, ...]) -> tuple[str, ...]:
    known = view.columns
    for name in names:
        if name not in known or names.count(name) > 1:
            raise bad_option("columns", f"some of {', '.join(known)}, each once", name)
    return names or tuple(name for name, column in known.items() if column.is_default)


def _states(names: tuple[str, ...]) -> tuple[str, ...]:
    states: list[str] = []
    for name in names:
        if name not in (*_STATES, UNDECIDED):
            raise bad_option("states", f"{UNDECIDED}, or some of {', '.join(_STATES)}", name)
        states += _UNDECIDED if name == UNDECIDED else (name,)
    return tuple(dict.fromkeys(states)) or _STATES


def _offsets(name: str, given: str) -> ReadOffsets:
    """A number, or a JSON object of numbers by broker name."""
    if not given:
        return ReadOffsets()
    try:
        read: Any = json.loads(given)
    except ValueError:
        read = None
    if _is_offset(read):
        return ReadOffsets(every=read)
    if not isinstance(read, dict) or not all(map(_is_offset, read.values())):
        allowed = 'an offset, or one for each broker: {"NAME": 0}'
        words = f"{EARLIEST}, {LATEST}, " if name == "startingOffsets" else ""
        raise bad_option(name, words + allowed, given)
    return ReadOffsets(by_name=tuple(read.items()))


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
