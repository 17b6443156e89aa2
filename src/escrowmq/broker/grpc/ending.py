"""EndTransaction: brings a producer's decision to the core, and answers what became of it.

The transaction id leads to the half message in the durable table, at any age within retention and
after a restart. OK means that this decision stands and is durable. Another decision, or none that
can be found, is a code of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.broker.grpc.codes import code_of, ok, status_of
from escrowmq.broker.grpc.names import name_of
from escrowmq.broker.grpc.requests import GrpcRequest, serves
from escrowmq.broker.grpc.transaction_ids import HalfPlace, TransactionIds, is_forgotten
from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.grpc.enums import GrpcResolution
from escrowmq.protocol.grpc.messages import EndTransactionRequest, EndTransactionResponse
from escrowmq.protocol.message.limits import validate_topic
from escrowmq.transaction.commands import Decision, End, EndReply

if TYPE_CHECKING:
    from escrowmq.broker.checks.contradictions import Contradictions
    from escrowmq.broker.checks.end_log import EndLog
    from escrowmq.broker.net.answering import Answering
    from escrowmq.store.store import Store

_RESOLUTIONS: dict[int, Resolution] = {
    GrpcResolution.TRANSACTION_RESOLUTION_UNSPECIFIED: Resolution.UNKNOWN,
    GrpcResolution.COMMIT: Resolution.COMMIT,
    GrpcResolution.ROLLBACK: Resolution.ROLLBACK,
}


@dataclass(frozen=True, slots=True)
class GrpcEnding:
    """Handles EndTransaction."""

    answering: Answering
    store: Store
    contradictions: Contradictions
    end_log: EndLog
    ids: TransactionIds

    @serves("EndTransaction")
    def end(self, request: GrpcRequest, asked: EndTransactionRequest) -> None:
        """Decide a transaction, or note that its outcome is not known yet."""
        topic = name_of(asked.topic)
        validate_topic(topic)
        place = self.ids.read(asked.transaction_id)
        resolution = _RESOLUTIONS.get(asked.resolution)
        if resolution is None:
            raise RequestRefused(
                "resolution_unknown",
                "send 1 to commit, 2 to roll back, 0 if it is not known",
                resolution=asked.resolution,
            )
        command = End(
            half_offset=place.half_offset,
            resolution=resolution,
            by=request.client_id,
            # The producer group of a gRPC client is its topic.
            group=topic,
            log_offset=place.log_offset,
            ids=(asked.message_id,) if asked.message_id else (),
            epoch="" if is_forgotten(self.store.core.lineage, place) else place.epoch,
            seen_to=place.log_offset,
            from_check=self._is_asked(place),
        )

        def contradicted(refused: RequestRefused, stands: EndReply) -> None:
            self.contradictions.note(command.resolution, command.by, stands)
            request.answer(EndTransactionResponse(status=status_of(refused)), code_of(refused))

        def decided(decision: Decision) -> None:
            self.end_log.note(command, asked.transaction_id, decision.reply)
            request.answer(EndTransactionResponse(status=ok()))

        self.answering.submit(request, command, decided, contradicted)

    def _is_asked(self, place: HalfPlace) -> bool:
        """Whether a back-check awaits this answer, whatever the client says: some never say it."""
        half = self.store.core.half(place.half_offset)
        return half is not None and self.store.core.head_row(half).checks_sent > 0
