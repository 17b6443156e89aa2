"""RECALL_MESSAGE: the sender of a delayed message takes it back before it is visible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.broker.net.requests import Request, handles
from escrowmq.broker.state.messages import REGION
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.send_headers import RecallHeader, RecallResponseHeader

if TYPE_CHECKING:
    from escrowmq.broker.net.answering import Answering
    from escrowmq.broker.state.recall_handles import Recalls
    from escrowmq.transaction.commands import Decision


@dataclass(frozen=True, slots=True)
class Recalling:
    """Handles RECALL_MESSAGE, which clients of RocketMQ 5.3 and later send."""

    answering: Answering
    recalls: Recalls

    @handles(RequestCode.RECALL_MESSAGE)
    def recall(self, request: Request) -> None:
        """Take a delayed message back; the answer leaves once that is durable."""
        header = request.header(RecallHeader)
        by = request.by
        command, message_id = self.recalls.command(header.topic, header.handle, by)

        def recalled(_decision: Decision) -> None:
            request.answer(header=RecallResponseHeader(message_id=message_id, region=REGION))

        self.answering.submit(request, command, recalled)
