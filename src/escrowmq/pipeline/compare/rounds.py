"""A round of the half/op comparison: plan, join, second look, checkpoint, report.

``RoundLimits`` limits what a round reads of each broker's log; ``behind`` says that the log goes
on. It also limits the undecided requests in a checkpoint. Beyond them the youngest are left out,
which ``open_limit`` says, and the comparison begins anew when half of the room is free again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from escrowmq.model.errors import EscrowError
from escrowmq.model.event_log import event_log
from escrowmq.pipeline.audit.arrays import HALF, Rows
from escrowmq.pipeline.brokers_round import BrokersRound
from escrowmq.pipeline.compare.checkpoint import (
    KEPT_MAX,
    Checkpoints,
    ComparisonCheckpoint,
    Difference,
)
from escrowmq.pipeline.compare.folding import FoldedPart, fold_parts
from escrowmq.pipeline.compare.judging import differences_of
from escrowmq.pipeline.compare.planning import USUAL_LIMITS, BrokerPart, RoundLimits, plan_part
from escrowmq.pipeline.compare.reporting import send
from escrowmq.pipeline.compare.state_stores import compare_state_store
from escrowmq.pipeline.source.positions import to_keep
from escrowmq.protocol.native.comparisons import ReportComparisonHeader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = event_log(__name__)


class ComparisonSummary(BrokersRound, frozen=True, kw_only=True):
    """Result of one round, over all brokers."""

    #: Half messages and decisions that were new.
    half_messages: int = 0
    decisions: int = 0
    #: Brokers whose comparison began anew.
    begun: int = 0
    #: Differences that hold now.
    differences_held: int = 0
    open_requests_held: int = 0
    #: Whether some broker's log goes on after what was read.
    is_behind: bool = False


class Comparing:
    """Runs rounds, for the brokers that are named. Each broker has a checkpoint of its own."""

    def __init__(
        self,
        spark: SparkSession,
        checkpoints: str,
        *,
        pipeline: str,
        limits: RoundLimits = USUAL_LIMITS,
    ) -> None:
        self._spark = spark
        self._checkpoints = Checkpoints(checkpoints)
        self._pipeline = pipeline
        self._limits = limits

    def round(self, addresses: Sequence[str]) -> ComparisonSummary:
        """Compare the new records of these brokers."""
        began_s, started_at_ms = time.monotonic(), time.time_ns() // 1_000_000
        parts, away = self._plan(addresses)
        folded: dict[str, FoldedPart] = {}
        if parts:
            folded = fold_parts(self._spark, parts, range_halves=self._limits.range_halves)
        reports = [self._end(part, folded[part.name], began_s) for part in parts]
        return ComparisonSummary(
            started_at_ms=started_at_ms,
            took_ms=_ms_since(began_s),
            brokers=len(parts),
            away=tuple(away),
            half_messages=sum(_new_halves(part, folded[part.name]) for part in parts),
            decisions=sum(one.counts.get("decisions", 0) for one in folded.values()),
            begun=sum(bool(part.begun) for part in parts),
            differences_held=sum(one.differences for one in reports),
            open_requests_held=sum(one.open_requests for one in reports),
            is_behind=any(part.is_behind for part in parts),
        )

    def _plan(self, addresses: Sequence[str]) -> tuple[list[BrokerPart], list[str]]:
        parts: dict[str, BrokerPart] = {}
        away = []
        for address in addresses:
            try:
                part = plan_part(address, self._checkpoints, self._limits)
            except EscrowError as error:
                log.warning("comparison_broker_away", extra={"broker": address, "why": str(error)})
                away.append(address)
                continue
            parts.setdefault(part.name, part)
            if part.begun:
                log.info("comparison_begun", extra={"broker": part.name, "why": part.begun})
        return list(parts.values()), away

    def _end(self, part: BrokerPart, folded: FoldedPart, began_s: float) -> ReportComparisonHeader:
        """Judge, save the checkpoint, and report."""
        now_ms = time.time_ns() // 1_000_000
        found = differences_of(part, folded, found_at_ms=now_ms)
        said, of_state_store = compare_state_store(part, folded, found_at_ms=now_ms)
        found += of_state_store
        open_max = self._limits.open_requests
        kept, left = folded.open[:open_max], folded.open[open_max:]
        checkpoint = _after(part, kept, left, found[:KEPT_MAX])
        self._checkpoints.save(part.sight.store_id, checkpoint)
        outcome = "behind" if part.is_behind else "caught_up"
        report = ReportComparisonHeader(
            pipeline=self._pipeline,
            outcome="open_limit" if checkpoint.left_out else outcome,
            begun=part.begun,
            decided_before=checkpoint.decided_before,
            half_end=checkpoint.half_end,
            log_offset=checkpoint.log_offset,
            open_requests=len(checkpoint.open_rows),
            left_out=checkpoint.left_out,
            differences=len(found),
            state_store=said,
            took_ms=_ms_since(began_s),
        )
        send(part, report, checkpoint.differences)
        return report


def _new_halves(part: BrokerPart, folded: FoldedPart) -> int:
    """The number of half messages that no earlier round read."""
    held = 0 if part.before is None else int(part.before.open_rows["count"].sum())
    return folded.counts.get("half_messages", 0) - held


def _after(
    part: BrokerPart, kept: Rows, left: Rows, found: Sequence[Difference]
) -> ComparisonCheckpoint:
    """The checkpoint after a round."""
    before = part.before
    entry = to_keep({part.name: part.pin.log_end}, {part.name: part.sight}, {})
    left_out = len(left) + (0 if before is None else before.left_out)
    left_from = [int(left["first"][0])] if len(left) else []
    left_from += [before.left_out_from] if before is not None and before.left_out else []
    known_from = part.pin.known_from
    if len(left):
        known_from = max(known_from, int(left["first"].max()) + 1)
    return ComparisonCheckpoint(
        position=entry[part.name],
        half_end=part.half_end,
        known_from=known_from,
        open=np.ascontiguousarray(kept, dtype=HALF).tobytes(),
        left_out=left_out,
        left_out_from=min(left_from, default=-1),
        differences=tuple(found),
    )


def _ms_since(began_s: float) -> int:
    return int((time.monotonic() - began_s) * 1_000)
