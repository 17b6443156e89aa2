"""Text of ``escrowmq txn explain`` for a Spark sink's transactions, which get no back-checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.cli.asking import duration
from escrowmq.model.sink_attempt import (
    AGE_MS_MAX,
    GROUP_PREFIX,
    NO_POSITION,
    PLAIN_QUERY,
    is_part,
    parse_attempt,
    parse_part,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.model.sink_attempt import HomePart, SinkAttempt


def is_of_sink(producer_group: str) -> bool:
    """Return whether this producer group is a Spark sink's."""
    return producer_group.startswith(GROUP_PREFIX)


def held_by_sink(producer_group: str, transaction_id: str) -> Iterator[str]:
    """Explain which sink attempt an undecided transaction belongs to, and what decides it."""
    home = parse_part(producer_group, transaction_id)
    if home is not None:
        yield from _attempt(parse_attempt(home.held_as.producer_group, home.held_as.transaction_id))
        yield from _part(home)
    elif is_part(producer_group):
        yield "A Spark sink holds it. Its name does not say which broker decides it."
        yield f"It is parked when it is {duration(AGE_MS_MAX)} old."
    else:
        yield from _attempt(parse_attempt(producer_group, transaction_id))
        yield "The driver commits it together with the rest of its batch. The pipeline rolls it"
        yield "back if the batch was written without it, or if a later run of it has begun;"
        yield f"without such evidence, when it is {duration(AGE_MS_MAX)} old."


def _attempt(attempt: SinkAttempt | None) -> Iterator[str]:
    if attempt is None:
        yield "A Spark sink holds it. Its name does not say which batch it belongs to."
        return
    run = attempt.run
    query = "a plain write" if run.query_id == PLAIN_QUERY else f"query {run.query_id}"
    began = "" if run.opened_at == NO_POSITION else f"; its run began at log offset {run.opened_at}"
    yield (
        f"A task of a Spark sink holds it: app id {run.app_id}, {query}, batch {attempt.batch}, "
        f"partition {attempt.partition}{began}."
    )


def _part(home: HomePart) -> Iterator[str]:
    yield (
        f"Broker {home.broker} decides it: half message {home.half_offset} there belongs to the "
        "same attempt, and both end the same way."
    )
    yield f"escrowmq txn explain {home.held_as.transaction_id} asks that broker."
    yield "If the driver does not bring the decision here, the pipeline does."
