"""Encodes back-checks for remoting clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from escrowmq.protocol.message.ids import offset_message_id
from escrowmq.protocol.message.message_views import HALF_TOPIC, back_check_view
from escrowmq.protocol.message.properties import TRANSACTION_ID, UNIQ_KEY, find_property
from escrowmq.protocol.message.stored_message import skim
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.frames import encode_request
from escrowmq.protocol.remoting.send_headers import CheckTransactionHeader

if TYPE_CHECKING:
    from escrowmq.broker.config import Identity
    from escrowmq.broker.write.store_time import StoreClock
    from escrowmq.store.store import Store
    from escrowmq.transaction.table import Half

CHECK_EPOCHS_MAX = 16
"""A back-check names at most this many epochs, the newest, so that it stays small. Fewer epochs
make the producer's answer more careful, never wrong."""


@dataclass(frozen=True, slots=True)
class CheckFrames:
    """Encodes back-checks for remoting clients."""

    store: Store
    clock: StoreClock
    identity: Identity
    next_opaque: Callable[[], int]

    def encode(self, half: Half, record: bytes, group: str, *, is_binary: bool) -> bytes:
        """Encode a back-check of the half message that has this record."""
        _, _, _, _, _, properties = skim(record)
        stated = find_property(properties, TRANSACTION_ID.encode())
        transaction_id = stated.decode() if stated else self.store.table.identity(half)[0]
        unique_key = find_property(properties, UNIQ_KEY.encode())
        header = CheckTransactionHeader(
            topic=HALF_TOPIC,
            half_offset=half.half_offset,
            log_offset=half.log_offset,
            unique_key=unique_key.decode() if unique_key else transaction_id,
            transaction_id=transaction_id,
            offset_message_id=offset_message_id(self.identity.store_host, half.log_offset),
            broker_name=self.identity.name,
            **self._sight(half),
        )
        return encode_request(
            RequestCode.CHECK_TRANSACTION_STATE,
            self.next_opaque(),
            header=header,
            body=back_check_view(record, group, half.checks_sent + 1),
            is_one_way=True,
            is_binary=is_binary,
        )

    def _sight(self, half: Half) -> dict[str, Any]:
        """Return what the producer must know before it may fence the transaction in its ledger."""
        store = self.store
        if not store.core.names.origins[half.origin].ledger:
            return {}
        return {
            "lineage": store.core.lineage.newest(CHECK_EPOCHS_MAX).encode(),
            "log_end": store.durable_end,
            "half_end": store.durable_rows,
            "now_ms": self.clock.now_ms(),
        }
