"""``df.write.format("escrowmq")``: one batch of messages, written exactly once.

Tasks hold their rows as half messages. Each call of ``write`` is a separate attempt. The driver's
``commit`` then decides once, for all attempts that succeeded. Retried, speculative and failed
attempts are not among them and never become visible.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from escrowmq.model.errors import EscrowError
from escrowmq.model.event_log import event_log
from escrowmq.model.sink_attempt import (
    PLAIN_QUERY,
    RUN_CHARS,
    SinkAttempt,
    SinkRun,
    check_app_id,
    check_batch_name,
)
from escrowmq.pipeline.options import Options, bad_option
from escrowmq.pipeline.sink.brokers import BROKERS_MAX, SinkBrokers, find_brokers
from escrowmq.pipeline.sink.calls import SinkCalls
from escrowmq.pipeline.sink.columns import check_columns
from escrowmq.pipeline.sink.contents import content_of
from escrowmq.pipeline.sink.deciding import decide, give_up
from escrowmq.pipeline.sink.spark_names import query_of_named_batch
from escrowmq.pipeline.sink.writing import REQUEST_ROWS_MAX, AttemptWriting
from escrowmq.pipeline.sink.written import SinkBatch, SinkBroker, Written
from escrowmq.protocol.message.limits import validate_topic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = event_log(__name__)

OPTIONS = ("broker", "topic", "appId", "batchId", "timeoutMs")
TIMEOUT_MS = 60_000
PLAIN_APP = "spark"
"""The app id of plain writes without one. Their batches have unique names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of both writers."""

    addresses: tuple[str, ...]
    #: The topic of all rows; empty if a column names it.
    topic: str
    app_id: str
    #: Whether the user chose the app id. Then earlier batches under it count.
    has_app_id: bool
    batch_name: str
    #: Whether the user chose the name. Then another write may use the same one.
    has_batch_name: bool
    timeout_ms: int


def read_options(given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Parse and check the options."""
    options = Options(given, OPTIONS)
    addresses = options.brokers()
    if len(addresses) > BROKERS_MAX:
        raise bad_option("broker", f"at most {BROKERS_MAX} of them", str(len(addresses)))
    app_id = options.text("appId", None if is_stream else "")
    batch_name = options.text("batchId", "")
    if is_stream and batch_name:
        raise bad_option("batchId", "not for a stream: its batches have numbers", batch_name)
    if batch_name and not app_id:
        raise bad_option(
            "appId", "it must be given with batchId, because other programs may use the same name"
        )
    return SinkOptions(
        addresses=addresses,
        topic=options.text("topic", ""),
        app_id=check_app_id(app_id or PLAIN_APP),
        has_app_id=bool(app_id),
        batch_name=check_batch_name(batch_name or uuid.uuid4().hex),
        has_batch_name=bool(batch_name),
        timeout_ms=options.whole("timeoutMs", TIMEOUT_MS, low=1, high=3_600_000),
    )


def check(
    schema: StructType, options: SinkOptions, *, overwrite: bool, is_stream: bool = False
) -> None:
    """Refuse a write that is not possible."""
    if overwrite and is_stream:
        # Spark calls it an overwrite when each batch replaces the result of the last one.
        allowed = 'append: messages cannot be overwritten; write with .outputMode("append")'
        raise bad_option("outputMode", allowed, "complete")
    if overwrite:
        allowed = 'append: messages cannot be overwritten; write with .mode("append")'
        raise bad_option("mode", allowed, "overwrite")
    if options.topic:
        validate_topic(options.topic)
    check_columns(schema, has_topic=bool(options.topic))


def writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceArrowWriter:
    """Return a writer. Spark calls this on the driver, once for each write."""
    chosen = read_options(options, is_stream=False)
    check(schema, chosen, overwrite=overwrite)
    return PlainWriter(chosen)


class PlainWriter(DataSourceArrowWriter):
    """The writer of a batch.

    Made on the driver; pickled to the tasks and to the committing process.
    """

    rows_max = REQUEST_ROWS_MAX

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._brokers = brokers_of(options)
        self._run = SinkRun(
            app_id=options.app_id,
            query_id=PLAIN_QUERY,
            run=uuid.uuid4().hex[:RUN_CHARS],
            opened_at=self._brokers.opened_at,
        )

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Hold the rows of one partition. Runs in a task, once for each attempt."""
        run = self._run
        if self._options.has_batch_name:
            run = replace(run, query_id=query_of_named_batch())
        attempt = new_attempt(run, self._options.batch_name)
        return write_attempt(self._options, self._brokers, attempt, iterator, self.rows_max)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the batch visible. Runs beside the driver, after all tasks are done."""
        batch, written = self._options.batch_name, written_of(messages)
        run = written[0].attempt.run if written else self._run
        commit(self._options, self._brokers, run, batch, written)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Roll back undecided attempts. Runs beside the driver, also after a failed commit."""
        roll_back(self._options, self._brokers.home, written_of(messages))


# Shared by plain writes and streams.


def new_attempt(run: SinkRun, batch: int | str) -> SinkAttempt:
    """A new attempt with a unique id. Runs in a task."""
    context = TaskContext.get()
    assert context is not None, "tasks have a context"
    return SinkAttempt(
        run=run, batch=batch, partition=context.partitionId(), attempt=uuid.uuid4().hex
    )


def brokers_of(options: SinkOptions) -> SinkBrokers:
    """The brokers of the write, and which of them decides. Runs on the driver."""
    app_id = options.app_id if options.has_app_id else None
    return find_brokers(options.addresses, app_id, options.topic, options.timeout_ms)


def write_attempt(
    options: SinkOptions,
    brokers: SinkBrokers,
    attempt: SinkAttempt,
    batches: Iterator[Any],
    rows_max: int,
) -> Written:
    """Hold these rows. Runs in a task."""
    with ExitStack() as opened:
        home, *others = (
            (broker, opened.enter_context(SinkCalls(broker.address, options.timeout_ms)))
            for broker in brokers.all
        )
        writing = AttemptWriting(
            home[1],
            attempt,
            options.topic,
            rows_max,
            home=home[0].name,
            others=others,
            is_summed=options.has_batch_name,
        )
        return writing.write(batches)


def commit(
    options: SinkOptions,
    brokers: SinkBrokers,
    run: SinkRun,
    batch: int | str,
    written: Sequence[Written],
) -> None:
    """Decide the batch, once. A batch that is already decided is a success."""
    content = content_of((one.row_count, one.row_sum) for one in written)
    made = SinkBatch(run, batch, content if options.has_batch_name else "")
    if not options.has_app_id:
        # This batch name is unique, so the other brokers cannot know it.
        brokers = SinkBrokers(brokers.home)
    with SinkCalls(brokers.home.address, options.timeout_ms) as calls:
        outcome = decide(calls, made, written, options.timeout_ms, brokers)
    facts = {"app_id": run.app_id, "batch": batch, "rows": sum(one.rows for one in written)}
    log.info("batch_committed", extra={**facts, "outcome": outcome})


def roll_back(options: SinkOptions, home: SinkBroker, written: Sequence[Written]) -> None:
    """Roll back these attempts. If that fails, settle finds them later."""
    try:
        with SinkCalls(home.address, options.timeout_ms) as calls:
            give_up(calls, written)
    except EscrowError as error:
        # Raising this error would hide why the write was aborted.
        log.warning("attempts_left_behind", extra={"attempts": len(written), "why": str(error)})


def written_of(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """The results of the tasks. Failed tasks have none."""
    return [message for message in messages if isinstance(message, Written)]
