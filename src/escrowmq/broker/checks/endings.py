"""Ends of transactions that producers ask for, whatever their protocol.

Before the producer is answered, a contradiction is reported, and a resolution that an operator may
have to look into is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from escrowmq.broker.checks.end_log import EndLog
from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.transaction.commands import Decision, End, EndReply

if TYPE_CHECKING:
    from escrowmq.broker.checks.contradictions import Contradictions
    from escrowmq.broker.net.answering import Answerable, Answering, Contradicted


@dataclass(frozen=True, slots=True)
class Endings:
    """Brings producers' decisions to the core."""

    answering: Answering
    contradictions: Contradictions
    end_log: EndLog = field(default_factory=EndLog)

    def submit(
        self,
        request: Answerable,
        command: End,
        transaction_id: str,
        decided: Callable[[Decision], None],
        contradicted: Contradicted,
    ) -> None:
        """Bring a resolution to the core; once that is durable, ``decided`` answers the request.

        ``contradicted`` answers it instead if the opposite decision stands.
        """

        def tell_opposite(refused: RequestRefused, stands: EndReply) -> None:
            self.contradictions.note(command.resolution, command.by, stands)
            contradicted(refused, stands)

        def tell(decision: Decision) -> None:
            self.end_log.note(command, transaction_id, decision.reply)
            decided(decision)

        self.answering.submit(request, command, tell, tell_opposite)


def resolution_among(known: Mapping[int, Resolution], number: int) -> Resolution:
    """Return the resolution that a protocol's number stands for; refuse any other number."""
    resolution = known.get(number)
    if resolution is None:
        meanings = ", ".join(f"{one} for {meant.value}" for one, meant in known.items())
        raise RequestRefused("resolution_unknown", f"send {meanings}", resolution=number)
    return resolution
