"""What a round reads of each broker, and whether it continues or begins anew.

A round begins anew if its checkpoint does not belong to the broker's history: after a fork, with
another store, or if retention deleted records that were not read yet. It then reads the whole log,
as the first round does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import RequestRefused
from escrowmq.model.lineage import Sight
from escrowmq.pipeline.audit.pins import Pin, first_half
from escrowmq.pipeline.audit.ranges import RANGE_HALVES
from escrowmq.pipeline.compare.checkpoint import BegunFor, Checkpoints, ComparisonCheckpoint
from escrowmq.pipeline.source.positions import fork_of, is_other_store, position_of
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.sights import sight_of
from escrowmq.protocol.native.status_answer import StatusAnswer


class RoundLimits(NamedTuple):
    """How much one round reads and keeps."""

    #: Of each broker's log.
    log_bytes: int = 1024 * 1024 * 1024
    #: Undecided requests that a checkpoint keeps.
    open_requests: int = 1_000_000
    #: Half offsets that one task joins.
    range_halves: int = RANGE_HALVES


USUAL_LIMITS = RoundLimits()


@dataclass(frozen=True, kw_only=True)
class BrokerPart:
    """One broker's part of a round."""

    #: Below its ``known_from``, only open requests and carried-forward copies are known.
    pin: Pin
    sight: Sight
    #: The state before the round; None if the comparison begins anew.
    before: ComparisonCheckpoint | None
    begun: BegunFor
    #: The half offsets that the new records bring, ``[start, end)``.
    half_start: int
    half_end: int

    @property
    def name(self) -> str:
        """The broker's own name."""
        return self.pin.name

    @property
    def is_behind(self) -> bool:
        """Whether the log goes on after what the round reads."""
        return self.pin.log_end < self.pin.status.log_end


def plan_part(address: str, checkpoints: Checkpoints, limits: RoundLimits) -> BrokerPart:
    """Plan one broker's part of a round."""
    with NativeCalls(address) as calls:
        status = calls.call(NativeCode.STATUS).header
        assert isinstance(status, StatusAnswer)
        sight = sight_of(status)
        if sight is None:
            raise RequestRefused(
                "broker_outdated", "this release reports no lineage", broker=status.broker
            )
        before, begun = checkpoints.load(sight.store_id)
        if before is not None:
            begun = _unfit(before, sight, status, limits.open_requests)
            before = None if begun else before
        log_start = status.log_start if before is None else before.log_offset
        log_end = min(status.log_end, log_start + limits.log_bytes)
        pin = Pin(
            address=address,
            status=status,
            log_start=log_start,
            log_end=log_end,
            known_from=_known_from(calls, status) if before is None else before.known_from,
        )
        half_end = status.half_end
        if log_end < status.log_end:
            later = first_half(calls, log_end, status.log_end, lambda half: not half.is_copy)
            half_end = status.half_end if later is None else later.first
    return BrokerPart(
        pin=pin,
        sight=sight,
        before=before,
        begun=begun,
        half_start=0 if before is None else before.half_end,
        half_end=half_end,
    )


def _known_from(calls: NativeCalls, status: StatusAnswer) -> int:
    first = first_half(calls, status.log_start, status.log_end, lambda half: not half.is_copy)
    return status.half_end if first is None else first.first


def _unfit(
    before: ComparisonCheckpoint, sight: Sight, status: StatusAnswer, open_max: int
) -> BegunFor:
    """Why the comparison cannot continue from this checkpoint; empty if it can."""
    seen = position_of(before.position).sight
    if is_other_store(seen, sight):
        return "other_store"
    if before.log_offset > _common_end(seen, sight, status):
        return "history_forked"
    if before.log_offset < status.log_start:
        return "records_deleted"
    # There is room again for what was left out.
    if before.left_out and status.undecided + status.parked <= open_max // 2:
        return "open_again"
    return ""


def _common_end(seen: Sight | None, sight: Sight, status: StatusAnswer) -> int:
    """Up to which log offset the broker's history is the one that was seen; -1 if unknown."""
    try:
        fork = fork_of(status.broker, seen, sight)
    except RequestRefused:
        return -1
    return status.log_end if fork is None else min(fork.log_offset, status.log_end)
