"""RecallMessage: the sender of a delayed message takes it back before it is visible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.broker.grpc.codes import ok
from escrowmq.broker.grpc.names import topic_of
from escrowmq.broker.grpc.requests import GrpcRequest, serves
from escrowmq.protocol.grpc.messages import RecallMessageRequest, RecallMessageResponse

if TYPE_CHECKING:
    from escrowmq.broker.net.answering import Answering
    from escrowmq.broker.state.recall_handles import Recalls
    from escrowmq.transaction.commands import Decision


@dataclass(frozen=True, slots=True)
class GrpcRecalling:
    """Handles RecallMessage."""

    answering: Answering
    recalls: Recalls

    @serves("RecallMessage")
    def recall(self, request: GrpcRequest, asked: RecallMessageRequest) -> None:
        """Take a delayed message back; the answer leaves once that is durable."""
        topic = topic_of(asked.topic)
        command, message_id = self.recalls.command(topic, asked.recall_handle, request.by)

        def recalled(_decision: Decision) -> None:
            request.answer(RecallMessageResponse(status=ok(), message_id=message_id))

        self.answering.submit(request, command, recalled)
