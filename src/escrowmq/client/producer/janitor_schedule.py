"""Regular cleaning of a producer's ledger: it deletes rows of durably decided transactions.

Only brokers of ours can confirm decisions. If one of them cannot be asked, the round ends: its
answer is not guessed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from escrowmq.client.ledger.janitor import Confirmed
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.lineage import Sight
from escrowmq.protocol.native.frames import read_answer
from escrowmq.protocol.native.headers import (
    LifeLineAnswer,
    NativeAnswer,
    NativeHeader,
    TransactionHeader,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.sights import sight_of
from escrowmq.protocol.native.status_answer import StatusAnswer

if TYPE_CHECKING:
    from escrowmq.client.ledger.table import SqlLedger
    from escrowmq.client.producer.producing import Producing

log = event_log(__name__)

#: Timeout for the brokers' answers about one page of rows.
ANSWERS_S = 30.0


class Janitor:
    """Janitor of one producer. Use it from one event loop only."""

    def __init__(self, producing: Producing, ledger: SqlLedger) -> None:
        self._producing = producing
        self._ledger = ledger
        self._task: asyncio.Task[None] | None = None

    def start(self, every_s: float) -> None:
        """Clean at intervals; 0 means never."""
        if every_s:
            self._task = asyncio.ensure_future(self._clean_again(every_s))

    async def close(self) -> None:
        """Stop cleaning."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def clean(self) -> int:
        """Sweep the ledger once; return the number of deleted rows."""
        return await self._ledger.sweep_async(self._confirm)

    async def _clean_again(self, every_s: float) -> None:
        while True:
            # Random waits, so that producers that started together do not clean together.
            await asyncio.sleep(every_s * random.uniform(0.5, 1.5))  # noqa: S311 - not a secret
            try:
                deleted = await self.clean()
            except Exception as error:  # noqa: BLE001 - the next round tries again
                log.warning("ledger_not_cleaned", extra={"why": str(error)})
            else:
                log.info("ledger_cleaned", extra={"rows_deleted": deleted})

    async def _confirm(self, ids: Sequence[str]) -> Confirmed:
        """Return which transactions are durably decided, how, and in which history."""
        found: dict[str, LedgerOutcome] = {}
        sights: list[Sight] = []
        async with asyncio.timeout(ANSWERS_S):
            for address in self._producing.member.brokers:
                if not (await self._producing.broker(address)).is_ours:
                    continue
                answers = await asyncio.gather(*(self._life_line(address, one) for one in ids))
                decided = {
                    one: LedgerOutcome(answer.state)
                    for one, answer in zip(ids, answers, strict=True)
                    if answer is not None and answer.state in _DECIDED
                }
                if decided:
                    epochs = {answer.epoch for answer in answers if answer is not None}
                    sights.append(await self._sight(address, epochs))
                    found |= decided
        return Confirmed(found, sights)

    async def _life_line(self, address: str, transaction_id: str) -> LifeLineAnswer | None:
        header = TransactionHeader(transaction_id=transaction_id, limit=1, leaves_marks=True)
        try:
            answer = await self._ask(address, NativeCode.LIFE_LINE, header)
        except RequestRefused as refused:
            if refused.code != "transaction_unknown":
                raise
            return None
        assert isinstance(answer, LifeLineAnswer)
        return answer

    async def _sight(self, address: str, epochs: Collection[str]) -> Sight:
        """Return the broker's history; Unavailable if it answered under another epoch before."""
        told = await self._ask(address, NativeCode.STATUS, NativeHeader())
        assert isinstance(told, StatusAnswer)
        sight = sight_of(told)
        if sight is None or set(epochs) != {told.epoch}:
            raise Unavailable(
                "broker_restarted", "the next round asks again", broker=address, epoch=told.epoch
            )
        return sight

    async def _ask(self, address: str, code: NativeCode, header: NativeHeader) -> NativeAnswer:
        answer = read_answer(code, await self._producing.network.ask(address, code, header))
        header_told: NativeAnswer = answer.header
        return header_told


_DECIDED = (LedgerOutcome.COMMITTED, LedgerOutcome.ROLLED_BACK)
