"""What a broker lets go by itself because nobody uses it any more."""

from __future__ import annotations

from pathlib import Path

from escrowmq.model.limits_config import DAY_MS
from escrowmq.protocol.codes import ResponseCode
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_headers import ListTransactionsHeader
from escrowmq.protocol.own_sink_headers import DecideBatchHeader
from escrowmq.testing.clock import ManualClock
from tests.unit.broker.own_peer import all_rows, ask
from tests.unit.broker.wire import COMMIT, END, SEND, T0, Peer, ending, half, serving

EXPIRE_MS = 30 * DAY_MS


async def test_a_new_producer_group_is_accepted_after_dead_ones_expired(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock, limits={"origins_max": 2}) as server:
        peer = await Peer.to(server.broker_address)
        for number in range(2):
            answer = await peer.ask(SEND, half(f"k-{number}", PGROUP=f"group-{number}"))
            end = ending(answer, COMMIT, producer_group=f"group-{number}")
            assert (await peer.ask(END, end)).code == ResponseCode.SUCCESS
        answer = await peer.ask(SEND, half("k-2", PGROUP="group-2"))
        assert "too_many_origins" in answer.remark
        clock.advance(ms=EXPIRE_MS + 1)
        server.broker.expiring.may_delete = lambda: False
        await server.broker.expiring.run()
        assert server.broker.expiring.counts.total() == 0
        server.broker.expiring.may_delete = lambda: True
        await server.broker.expiring.run()
        assert server.broker.expiring.counts["origins"] == 2
        answer = await peer.ask(SEND, half("k-2", PGROUP="group-2"))
        assert answer.code == ResponseCode.SUCCESS
        # What expired groups have sent is still listed under their names.
        header = ListTransactionsHeader(states="committed,prepared", with_ids=True)
        rows = await all_rows(peer, OwnCode.LIST_TRANSACTIONS, header)
        assert [row.producer_group for row in rows] == ["group-0", "group-1", "group-2"]
        names = await ask(peer, OwnCode.LIST_NAMES)
        origins = {row.number: row.name for row in names.rows if row.kind == "origin"}
        assert origins == {0: "group-0", 1: "group-1", 2: "group-2"}


async def test_a_query_that_is_over_expires(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        header = DecideBatchHeader(app_id="app", query_id="q", batch_number=3, by="spark")
        await ask(peer, OwnCode.DECIDE_BATCH, header)
        await server.broker.expiring.run()
        assert server.broker.expiring.counts.total() == 0
        clock.advance(ms=EXPIRE_MS + 1)
        await server.broker.expiring.run()
        assert server.broker.expiring.counts["queries"] == 1
        assert server.broker.store.core.batches.judge("app", "q", 3) == "expired"
