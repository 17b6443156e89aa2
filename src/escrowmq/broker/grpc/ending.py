"""EndTransaction: brings a producer's decision to the core, and answers what became of it.

The transaction id leads to the half message in the durable table, at any age within retention and
after a restart. OK means that this decision stands and is durable. If the opposite decision stands,
or the id leads to no half message, the answer has an error code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.broker.checks.endings import resolution_among
from escrowmq.broker.grpc.codes import code_of, ok, status_of
from escrowmq.broker.grpc.names import topic_of
from escrowmq.broker.grpc.requests import GrpcRequest, serves
from escrowmq.broker.state.row_places import RowPlace, epoch_to_check
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.grpc.enums import GrpcResolution, GrpcSource
from escrowmq.protocol.grpc.messages import EndTransactionRequest, EndTransactionResponse
from escrowmq.transaction.commands import End

if TYPE_CHECKING:
    from escrowmq.broker.checks.budget import CheckBudget
    from escrowmq.broker.checks.endings import Endings
    from escrowmq.broker.grpc.transaction_ids import TransactionIds
    from escrowmq.model.errors import RequestRefused
    from escrowmq.store.store import Store
    from escrowmq.transaction.commands import Decision, EndReply

_DECIDED = EndTransactionResponse(status=ok()).SerializeToString()

_RESOLUTIONS: dict[int, Resolution] = {
    GrpcResolution.TRANSACTION_RESOLUTION_UNSPECIFIED: Resolution.UNKNOWN,
    GrpcResolution.COMMIT: Resolution.COMMIT,
    GrpcResolution.ROLLBACK: Resolution.ROLLBACK,
}


@dataclass(frozen=True, slots=True)
class GrpcEnding:
    """Handles EndTransaction."""

    endings: Endings
    store: Store
    ids: TransactionIds
    budget: CheckBudget

    @serves("EndTransaction")
    def end(self, request: GrpcRequest, asked: EndTransactionRequest) -> None:
        """Decide a transaction, or note that its outcome is not known yet."""
        topic = topic_of(asked.topic)
        place = self.ids.read(asked.transaction_id)
        command = End(
            half_offset=place.half_offset,
            resolution=resolution_among(_RESOLUTIONS, asked.resolution),
            by=request.by,
            # The producer group of a gRPC client is its topic.
            group=topic,
            log_offset=place.log_offset,
            ids=(asked.message_id,) if asked.message_id else (),
            epoch=epoch_to_check(self.store.core.lineage, place),
            seen_to=place.log_offset,
            from_check=self._is_asked(place, asked),
        )

        def contradicted(refused: RequestRefused, _stands: EndReply) -> None:
            request.answer(EndTransactionResponse(status=status_of(refused)), code_of(refused))

        def decided(_decision: Decision) -> None:
            request.answer_with(_DECIDED)

        self.endings.submit(request, command, asked.transaction_id, decided, contradicted)

    def _is_asked(self, place: RowPlace, asked: EndTransactionRequest) -> bool:
        """Whether this answers a back-check. Some clients never say so."""
        half = self.store.core.half(place.half_offset)
        if half is None:
            return False
        head = self.store.core.head_row(half)
        # The budget forgets checks at a restart and after a time, so the client's word counts too.
        says_so = asked.source == GrpcSource.SOURCE_SERVER_CHECK and head.checks_sent > 0
        return says_so or self.budget.awaits(head.half_offset)
