"""The back-check of a gRPC client, which asks what became of an undecided transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.broker.grpc.told_messages import told_message
from escrowmq.protocol.grpc.messages import (
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
)
from escrowmq.protocol.message.message_views import back_check_view

if TYPE_CHECKING:
    from escrowmq.broker.grpc.transaction_ids import TransactionIds
    from escrowmq.store.store import Store
    from escrowmq.transaction.table import Half


@dataclass(frozen=True, slots=True)
class OrphanCommands:
    """Encodes the back-checks of gRPC clients."""

    store: Store
    ids: TransactionIds

    def encode(self, half: Half, record: bytes, group: str) -> bytes:
        """Encode a back-check of the half message that has this record."""
        message = told_message(back_check_view(record, group, half.checks_sent + 1))
        epoch = self.store.core.lineage.epoch
        command = RecoverOrphanedTransactionCommand(
            message=message,
            transaction_id=self.ids.make(epoch, half.half_offset, half.log_offset),
        )
        return TelemetryCommand(recover_orphaned_transaction_command=command).SerializeToString()
