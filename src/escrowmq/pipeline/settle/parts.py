"""Ends parts of sink attempts as the attempt ended at its home broker.

This forwards a decision to brokers that the sink's driver could no longer reach. It runs on the
driver of the round: one request to a home covers many parts, and even large batches have few parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import EscrowError, Unavailable
from escrowmq.model.lineage import Sight
from escrowmq.model.sink_attempt import HomePart, parse_part
from escrowmq.pipeline.settle.brokers import ANSWER_S
from escrowmq.pipeline.settle.rows import UNKNOWN, CountKey, ReportKind, Tallies, counts, reports
from escrowmq.pipeline.settle.verdicts import VerdictSender
from escrowmq.pipeline.sink.calls import full_requests
from escrowmq.pipeline.sink.fates import verdict_on_part
from escrowmq.pipeline.views.facts import AGE_MS, BROKER, PRODUCER_GROUP, TRANSACTION_ID
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import SoughtAttemptRow
from escrowmq.protocol.native.sink_headers import FindAttemptsHeader
from escrowmq.transaction.commands import VerdictKind

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

#: Why nothing was done about a part, or why it was parked.
HOME_AWAY = "home_away"
HOME_UNKNOWING = "home_does_not_know"

_Row = Mapping[str, Any]


class _Judged(NamedTuple):
    """The verdict on a part, and the reason if there is none or if it is parked."""

    verdict: VerdictKind | None
    reason: str = ""


def settle_parts(
    parts: pa.Table, homes: Mapping[str, str], sights: Mapping[str, Sight]
) -> tuple[list[dict[str, Any]], Mapping[str, EscrowError]]:
    """End the parts whose home has decided.

    `homes` maps broker names to addresses, and `sights` maps broker addresses to histories. Returns
    the reports of what was done, and the homes that could not be reached.
    """
    rows: list[_Row] = parts.to_pylist()
    judged, away = judge(rows, homes)
    tallies = Tallies()
    for row, (verdict, reason) in zip(rows, judged, strict=True):
        if verdict is None and reason:
            tallies[CountKey(row[BROKER], UNKNOWN, reason)] += 1
    origin = uuid4().hex
    with VerdictSender(tallies, sights) as verdicts:
        (batch,) = parts.combine_chunks().to_batches()
        verdicts.put(
            batch,
            [None if one.verdict is None else one.verdict.value for one in judged],
            [one.reason or None for one in judged],
        )
        verdicts.flush()
        parked = reports(ReportKind.PARKED, verdicts.parked, origin=origin)
    return [*parked.to_pylist(), *counts(tallies, origin=origin).to_pylist()], away


def judge(
    rows: Sequence[_Row], homes: Mapping[str, str]
) -> tuple[list[_Judged], dict[str, EscrowError]]:
    """Return the verdict on each part, and the homes that could not be reached."""
    judged = [_judged(None, row[AGE_MS]) for row in rows]
    away: dict[str, EscrowError] = {}
    by_home: dict[tuple[str, str], list[tuple[int, HomePart]]] = defaultdict(list)
    for number, row in enumerate(rows):
        home = parse_part(row[PRODUCER_GROUP], row[TRANSACTION_ID])
        if home is not None:
            by_home[home.broker, home.held_as.producer_group].append((number, home))
    for (name, group), its in by_home.items():
        place = homes.get(name, name)
        try:
            if place in away:
                # It did not answer for another app id.
                raise away[place]
            states = _states(homes.get(name), group, [home for _, home in its])
        except EscrowError as error:
            away[place] = error
            for number, _ in its:
                judged[number] = _Judged(None, HOME_AWAY)
        else:
            for (number, _), state in zip(its, states, strict=True):
                judged[number] = _judged(state, rows[number][AGE_MS])
    return judged, away


def _judged(state_at_home: str | None, age_ms: int) -> _Judged:
    verdict = verdict_on_part(state_at_home, age_ms)
    return _Judged(verdict, HOME_UNKNOWING if state_at_home is None else "")


def _states(address: str | None, group: str, sought: Sequence[HomePart]) -> list[str | None]:
    """The states of these attempts at their home."""
    if address is None:
        raise Unavailable("home_away", "the pipeline does not reach the home broker, which decides")
    header = FindAttemptsHeader(producer_group=group)
    rows = [SoughtAttemptRow(one.half_offset, one.held_as.transaction_id) for one in sought]
    with NativeCalls(address, answer_s=ANSWER_S) as calls:
        return [
            found.state
            for some in full_requests(NativeCode.FIND_ATTEMPTS, rows)
            for found in calls.call(NativeCode.FIND_ATTEMPTS, header, some).rows
        ]
