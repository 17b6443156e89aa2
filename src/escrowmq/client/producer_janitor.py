"""Cleans a producer's ledger now and then: rows of transactions that are decided for good.

Only brokers of ours can be asked that.  One that cannot be asked ends the round: what it would have
said is not guessed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from escrowmq.client.ledger_checks import Outcome
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_frames import read_answer
from escrowmq.protocol.own_headers import LifeLineAnswer, TransactionHeader

if TYPE_CHECKING:
    from escrowmq.client.ledger_table import SqlLedger
    from escrowmq.client.producing import Producing

log = logging.getLogger(__name__)

#: How long a round waits for the brokers' answers about one page of rows.
ANSWERS_S = 30.0


class Janitor:
    """Belongs to one event loop."""

    def __init__(self, producing: Producing, ledger: SqlLedger) -> None:
        self._producing = producing
        self._ledger = ledger
        self._task: asyncio.Task[None] | None = None

    def start(self, every_s: float) -> None:
        """Clean at intervals; 0 means never."""
        if every_s:
            self._task = asyncio.ensure_future(self._clean_again(every_s))

    async def close(self) -> None:
        """End the rounds."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def clean(self) -> int:
        """Go once through the ledger; how many rows were deleted."""
        return await self._ledger.sweep_async(self._decided, now_ms=int(time.time() * 1_000))

    async def _clean_again(self, every_s: float) -> None:
        while True:
            # Producers that were started together must not clean together.
            await asyncio.sleep(every_s * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            try:
                deleted = await self.clean()
            except Exception as error:  # noqa: BLE001 - the next round tries again
                log.warning("ledger_not_cleaned", extra={"why": str(error)})
            else:
                log.info("ledger_cleaned", extra={"rows_deleted": deleted})

    async def _decided(self, ids: Sequence[str]) -> dict[str, Outcome]:
        """Which of these are durably decided, and how."""
        found: dict[str, Outcome] = {}
        async with asyncio.timeout(ANSWERS_S):
            for address in self._producing.member.brokers:
                if (await self._producing.broker(address)).is_ours:
                    asked = (self._state(address, one) for one in ids)
                    states = zip(ids, await asyncio.gather(*asked), strict=True)
                    found |= {one: Outcome(state) for one, state in states if state in _DECIDED}
        return found

    async def _state(self, address: str, transaction_id: str) -> str:
        code = OwnCode.LIFE_LINE
        header = TransactionHeader(transaction_id=transaction_id, limit=1)
        try:
            answer = read_answer(code, await self._producing.network.ask(address, code, header))
        except RequestRefused as refused:
            if refused.code != "transaction_unknown":
                raise
            return ""
        assert isinstance(answer.header, LifeLineAnswer)
        return answer.header.state


_DECIDED = (Outcome.COMMITTED, Outcome.ROLLED_BACK)
