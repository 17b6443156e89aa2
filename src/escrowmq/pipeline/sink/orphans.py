"""Finds attempts of the sink that will never be committed, by evidence, and by age after a day.

A retried task, a speculative task that lost and a killed driver each leave an attempt that is held
and that no decision will name. Rolling back an attempt that is still wanted would not harm
messages, because its batch is then refused as a whole, but the job would fail. So evidence is
needed:

* its batch was decided, so that it can be neither named nor decided any more;
* a later run of its query, or of its batch, holds something: Spark has given this run up. A run is
  later if the log of its home was longer when it began, whatever a driver's clock says;
* nothing of that for a day: its driver is dead and was not restarted.
"""

from __future__ import annotations

from enum import StrEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from escrowmq.model.sink_attempt import (
    AGE_MS_MAX,
    BATCH_MARK,
    GROUP_PREFIX,
    PLAIN_QUERY,
    POSITION_MARK,
    TRANSACTION_PATTERN,
)
from escrowmq.pipeline.views.facts import AGE_MS, APP_ID, BROKER, PRODUCER_GROUP, TRANSACTION_ID

EVIDENCE = "evidence"

# Columns of ``BatchRow``, besides the app id.
BATCH_NUMBER = "batch_number"
BATCH_NAME = "batch_name"

_IS_NAMED = "sink_is_named"
_BATCH = "sink_batch"
_OPENED_AT = "sink_opened_at"
_RUN = "sink_run"
_SCOPE = "sink_scope"
_NEWEST_RUN = "newest_run"
_NEWEST_AT = "newest_at"
_IS_NAME_DECIDED = "is_name_decided"


class OrphanEvidence(StrEnum):
    """Why an attempt is rolled back."""

    BATCH_DECIDED = "batch_decided"
    NEWER_RUN = "newer_run"
    TOO_OLD = "too_old"


def orphaned(attempts: DataFrame, batches: DataFrame) -> DataFrame:
    """The attempts with evidence against them, which is in the column ``evidence``.

    `attempts` are undecided transactions of sinks from the view ``transactions``, with ids.
    `batches` are the rows of LIST_BATCHES, with the added column ``broker``.
    """
    named = attempts.select(*attempts.columns, *_names())
    with_batches = named.join(F.broadcast(_highest(batches)), on=[BROKER, APP_ID], how="left").join(
        F.broadcast(_decided_names(batches)), on=[BROKER, APP_ID, _BATCH], how="left"
    )
    with_runs = with_batches.join(_newest_runs(named), on=[BROKER, APP_ID, _SCOPE], how="left")
    judged = with_runs.select(*attempts.columns, _evidence().alias(EVIDENCE))
    return judged.where(F.col(EVIDENCE).isNotNull())


def _names() -> list[Column]:
    """The fields of an attempt's ids; NULL where an id does not have the field."""

    def part(number: int) -> Column:
        found = F.regexp_extract(F.col(TRANSACTION_ID), TRANSACTION_PATTERN, number)
        return F.nullif(found, F.lit(""))

    app_id = F.substring(F.col(PRODUCER_GROUP), len(GROUP_PREFIX) + 1, 1_000)
    is_named = (part(1) == PLAIN_QUERY) | part(1).contains(BATCH_MARK)
    return [
        app_id.alias(APP_ID),
        part(2).alias(_BATCH),
        is_named.alias(_IS_NAMED),
        # NULL for a time, which is neither before nor after any other run.
        F.when(part(3).startswith(POSITION_MARK), F.substring(part(3), 2, 18))
        .try_cast("bigint")
        .alias(_OPENED_AT),
        part(4).alias(_RUN),
        # Runs of one stream follow each other. Plain writes run in parallel, unless they write the
        # same batch.
        F.when(is_named, F.concat_ws("/", part(1), part(2))).otherwise(part(1)).alias(_SCOPE),
    ]


def _highest(batches: DataFrame) -> DataFrame:
    """The highest decided batch number of each app. No query can decide it or a lower one again."""
    numbered = batches.where(F.col(BATCH_NUMBER).isNotNull())
    return numbered.groupBy(BROKER, APP_ID).agg(F.max(BATCH_NUMBER).alias(BATCH_NUMBER))


def _decided_names(batches: DataFrame) -> DataFrame:
    named = batches.where(F.col(BATCH_NAME).isNotNull())
    is_decided = F.lit(True).alias(_IS_NAME_DECIDED)  # noqa: FBT003 - a value
    return named.select(BROKER, APP_ID, F.col(BATCH_NAME).alias(_BATCH), is_decided).distinct()


def _newest_runs(named: DataFrame) -> DataFrame:
    return named.groupBy(BROKER, APP_ID, _SCOPE).agg(
        F.max(_OPENED_AT).alias(_NEWEST_AT),
        F.max_by(_RUN, _OPENED_AT).alias(_NEWEST_RUN),
    )


def _evidence() -> Column:
    is_number_decided = F.col(_BATCH).try_cast("bigint") <= F.col(BATCH_NUMBER)
    is_decided = F.when(F.col(_IS_NAMED), F.col(_IS_NAME_DECIDED)).otherwise(is_number_decided)
    is_older = F.col(_OPENED_AT) < F.col(_NEWEST_AT)
    is_of_older_run = is_older & (F.col(_RUN) != F.col(_NEWEST_RUN))
    is_too_old = F.col(AGE_MS) >= AGE_MS_MAX
    return F.coalesce(
        F.when(is_decided, F.lit(OrphanEvidence.BATCH_DECIDED.value)),
        F.when(is_of_older_run, F.lit(OrphanEvidence.NEWER_RUN.value)),
        # This also covers anything that only looks like an attempt: these groups have no producer.
        F.when(is_too_old, F.lit(OrphanEvidence.TOO_OLD.value)),
    )
