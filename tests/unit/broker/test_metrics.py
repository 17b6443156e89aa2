"""The Prometheus page: each event in a broker changes its numbers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.broker.broker import Broker
from escrowmq.broker.pages import exposition, metric_table
from escrowmq.broker.pages.metrics import MetricsPage
from escrowmq.broker.server import Server
from escrowmq.protocol.native.ledgers import LedgerReportRow, ReportLedgersHeader
from escrowmq.protocol.native.operator_headers import DecideByHandHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import AttemptRow, VerdictRow
from escrowmq.protocol.native.sink_headers import DecideBatchHeader
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.consumer_headers import UpdateOffsetHeader
from escrowmq.transaction.commands import Park, Resume
from escrowmq.transaction.states import State
from tests.unit.broker.asking import ASK, answering, check, obey, producer
from tests.unit.broker.exposition import Page, read_page
from tests.unit.broker.native_peer import ask, decide, hold, sent
from tests.unit.broker.test_delivering import MAY_WAIT, PULL, SUBSCRIBES, given_back, pulling, shop
from tests.unit.broker.test_http import get, talk, watched
from tests.unit.broker.wire import (
    COMMIT,
    END,
    ROLLBACK,
    SEND,
    UNKNOWN,
    Peer,
    clock_of,
    ending,
    eventually,
    half,
    sending,
)
from tests.unit.logged import events

if TYPE_CHECKING:
    import pytest

ORDERS = {"topic": "orders"}


async def scrape(server: Server) -> Page:
    code, headers, body = await talk(server, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert (code, headers["Content-Type"]) == (200, exposition.CONTENT_TYPE)
    return read_page(body.decode())


def advance(server: Server, ms: int) -> None:
    clock_of(server).advance(ms=ms)


async def test_a_message_that_is_sent_is_counted_by_its_topic_type_and_size(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert (await scrape(server)).sum("rocketmq_messages_in_total") == 0
        await peer.ask(SEND, sending(), bytes(2_000))
        await peer.ask(SEND, sending(properties={"__SHARDINGKEY": "k"}), b"x")
        await peer.ask(SEND, sending(properties={"DELAY": "1"}), b"x")
        await peer.ask(SEND, half("t1"), b"x")
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(), sent(topic="other")])
        page = await scrape(server)
        numbers = {"normal": 2, "fifo": 1, "delay": 1, "transaction": 1}
        for kind, count in numbers.items():
            found = page.value("rocketmq_messages_in_total", **ORDERS, message_type=kind)
            assert found == count, kind
        labels = {**ORDERS, "message_type": "normal"}
        stored = page.value("rocketmq_throughput_in_total", **labels)
        assert 2_000 < stored == page.value("rocketmq_message_size_sum", **labels)
        assert page.value("rocketmq_message_size_bucket", **labels, le="1024") == 1
        assert page.value("rocketmq_message_size_bucket", **labels, le="4096") == 2
        assert page.value("rocketmq_timing_messages", **ORDERS) == 1
        assert page.value("rocketmq_half_messages", **ORDERS) == 1
        # Two of the flushes are for the records that make the two topics.
        assert page.value("escrowmq_flush_seconds_count") == 7
        assert page.value("rocketmq_storage_size_bytes") == server.broker.store.log.end


async def test_commits_and_rollbacks_are_counted_by_topic_and_age(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        held = [await peer.ask(SEND, half(key), b"x") for key in ("t1", "t2", "t3")]
        advance(server, 30_000)
        page = await scrape(server)
        assert page.value("escrowmq_undecided_transactions") == 3
        assert page.value("escrowmq_oldest_undecided_seconds") == 30
        assert page.value("escrowmq_undecided_without_producer") == 3
        await peer.ask(END, ending(held[0], COMMIT))
        await peer.ask(END, ending(held[0], COMMIT))
        await peer.ask(END, ending(held[1], ROLLBACK))
        await peer.ask(END, ending(held[1], COMMIT))
        page = await scrape(server)
        assert page.value("rocketmq_commit_messages_total", **ORDERS) == 1
        assert page.value("rocketmq_rollback_messages_total", **ORDERS) == 1
        assert page.value("rocketmq_half_messages", **ORDERS) == 1
        latency = "rocketmq_finish_message_latency_milliseconds"
        assert page.value(f"{latency}_bucket", **ORDERS, le="5") == 0
        assert page.value(f"{latency}_bucket", **ORDERS, le="60") == 1
        assert page.value(f"{latency}_sum", **ORDERS) == 30
        assert page.value("escrowmq_contradictions_total") == 1
        assert page.sum("escrowmq_decisions_total") == 2


def settled(page: Page) -> dict[tuple[str, str], float]:
    """Return the non-zero counts of decisions by source and outcome."""
    samples = page["escrowmq_decisions_total"].samples
    told = [(dict(labels), value) for (_, labels), value in samples.items() if value]
    return {(labels["source"], labels["decision"]): value for labels, value in told}


async def test_a_decision_is_counted_by_its_source(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer = await producer(server, "p")
        for number in range(8):
            await hold(peer, f"t{number}", sent(), sent(topic="other"))
        await decide(peer, 0)
        assert await obey(server, ASK, 2) == "asked"
        header, _ = await check(peer)
        await peer.ask(END, answering(header, UNKNOWN))
        await peer.ask(END, answering(header, ROLLBACK))
        reason = DecideByHandHeader(half_offset=4, resolution="commit", reason="I looked", by="me")
        await ask(peer, NativeCode.DECIDE_BY_HAND, reason)
        batch = DecideBatchHeader(app_id="a", query_id="q", batch_number=0, by="driver")
        await hold(peer, "bulk", sent(), is_bulk=True)
        rows = [AttemptRow(transaction_id="bulk", last_number=0, messages=1)]
        await ask(peer, NativeCode.DECIDE_BATCH, batch, rows)
        singles = [(await hold(peer, f"s{number}")).header.half_offset for number in range(3)]
        verdicts = [
            VerdictRow(half_offset=at, verdict=said, state=State.PREPARED, checks_sent=0, reason="")
            for at, said in zip(
                [*singles, 6, 4], ["commit", "commit", "rollback", "commit", "ask"], strict=True
            )
        ]
        advance(server, 90_000)
        await ask(peer, NativeCode.OBEY_VERDICTS, rows=verdicts)
        page = await scrape(server)
        assert settled(page) == {
            ("producer", "committed"): 1,
            ("check", "rolled_back"): 1,
            ("hand", "committed"): 1,
            ("batch", "committed"): 1,
            ("settle", "committed"): 3,
            ("settle", "rolled_back"): 1,
        }
        assert page.value("escrowmq_checks_sent_total") == 1
        answers = {
            said: page.value("escrowmq_check_answers_total", answer=said)
            for said in ("commit", "rollback", "unknown")
        }
        assert answers == {"commit": 0, "rollback": 1, "unknown": 1}
        assert page.value("escrowmq_verdicts_total", outcome="committed") == 3
        assert page.value("escrowmq_verdicts_total", outcome="rolled_back") == 1
        assert page.value("escrowmq_verdicts_total", outcome="stale") == 1
        # Each of t0 to t7 has one message in each of the two topics.
        assert page.value("rocketmq_commit_messages_total", **ORDERS) == 6
        assert page.value("rocketmq_commit_messages_total", topic="other") == 3
        assert page.value("rocketmq_rollback_messages_total", **ORDERS) == 2
        latency = "rocketmq_finish_message_latency_milliseconds_bucket"
        assert page.value(latency, **ORDERS, le="60") == 3
        assert page.value(latency, **ORDERS, le="600") == 6
        assert page.value("escrowmq_pipeline_away_seconds") == 0
        assert page.value("escrowmq_last_verdict_timestamp_seconds") > 0


async def test_very_many_half_messages_are_counted_one_by_one(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for number, is_bulk in enumerate((False, True)):
            rows = [sent(bytes(size), topic) for size in (1, 2_000) for topic in ("a", "b")] * 10
            await hold(peer, f"t{number}", *rows, is_bulk=is_bulk)
        page = await scrape(server)
        for topic in ("a", "b"):
            labels = {"topic": topic, "message_type": "transaction"}
            assert page.value("rocketmq_messages_in_total", **labels) == 40
            assert page.value("rocketmq_message_size_bucket", **labels, le="1024") == 20
        assert page.value("rocketmq_half_messages", topic="a") == 40


async def test_parking_is_counted_and_so_is_what_is_parked(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t1")
        await server.broker.writer.submit(Park(half_offset=0, reason="exhausted"))
        page = await scrape(server)
        assert (
            page.value("escrowmq_parked_total"),
            page.value("escrowmq_parked_transactions"),
        ) == (1, 1)
        await server.broker.writer.submit(Resume(half_offset=0, by="me"))
        page = await scrape(server)
        assert (
            page.value("escrowmq_resumed_total"),
            page.value("escrowmq_parked_transactions"),
        ) == (1, 0)


LAGS = ("lag_messages", "inflight_messages", "ready_messages", "lag_latency", "queueing_latency")


def behind(page: Page, group: str = "shop") -> list[float]:
    names = [f"rocketmq_consumer_{name}" for name in LAGS]
    return [page.value(name, consumer_group=group, topic="orders") for name in names]


async def acknowledge(peer: Peer, offset: int) -> None:
    header = UpdateOffsetHeader(
        consumer_group="shop", topic="orders", queue_id=1, commit_offset=offset
    )
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def test_a_group_that_consumes_is_seen_to_come_closer(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer = await shop(server)
        for _ in range(5):
            await peer.ask(SEND, sending(), b"x")
            advance(server, 1_000)
        await peer.ask(PULL, pulling())
        await acknowledge(peer, 0)
        assert behind(await scrape(server)) == [5, 5, 0, 5_000, 0]
        # The group "late" has committed an offset and pulled nothing.
        server.broker.meta.set_offset("late", "orders", 1, 3)
        await acknowledge(peer, 4)
        page = await scrape(server)
        assert behind(page) == [1, 1, 0, 1_000, 0]
        assert behind(page, "late") == [2, 0, 2, 2_000, 2_000]
        assert page.value("rocketmq_messages_out_total", consumer_group="shop") == 5
        stored = page.value("rocketmq_throughput_in_total", **ORDERS)
        assert page.value("rocketmq_throughput_out_total", **ORDERS) == stored
        assert page.value("rocketmq_consumer_connections", consumer_group="shop") == 1
        assert page.value("rocketmq_producer_connections", language="python", version="v5_3_3") == 1
        await acknowledge(peer, 5)
        assert behind(await scrape(server)) == [0, 0, 0, 0, 0]


async def test_a_pull_that_waited_is_told_apart(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer, sender = await shop(server), await Peer.to(server.broker_address)
        await sender.ask(SEND, sending(), b"x")
        pull = pulling(1, sys_flag=SUBSCRIBES | MAY_WAIT)
        waiting = asyncio.ensure_future(peer.ask(PULL, pull))
        await eventually(lambda: server.broker.pulling.polls.waiting)
        assert (await scrape(server)).value("escrowmq_pulls_waiting") == 1
        await sender.ask(SEND, sending(), b"x")
        await waiting
        page = await scrape(server)
        labels = {"request_code": "pull_message", "is_long_polling": "true", "result": "success"}
        assert page.value("rocketmq_rpc_latency_milliseconds_count", **labels) == 1
        assert page.value("rocketmq_messages_out_total", **ORDERS, consumer_group="shop") == 1


async def test_dead_letters_are_counted_for_the_topic_they_came_from(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer = await shop(server)
        await peer.ask(SEND, sending(), b"x")
        assert await given_back(peer, server, "orders", 1, delay_level=-1) == 0
        page = await scrape(server)
        dead = page.value("rocketmq_send_to_dlq_messages_total", consumer_group="shop", **ORDERS)
        assert dead == 1
        # As in RocketMQ, retries and dead letters do not count as new messages.
        assert page.sum("rocketmq_messages_in_total") == 1


async def test_requests_are_counted_by_name_and_answer(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        held = await peer.ask(SEND, half("t1"), b"x")
        peer.tell(END, ending(held, COMMIT))
        await peer.ask(SEND, sending("bad topic!"), b"x")
        for code in (4_711, 4_712, 2**31 - 1):
            await peer.ask(code)
        page = await scrape(server)
        counted = {
            tuple(dict(labels)[name] for name in ("request", "outcome")): value
            for (_, labels), value in page["escrowmq_requests_total"].samples.items()
        }
        assert counted == {
            ("send_message_v2", "success"): 1,
            ("send_message_v2", "invalid_parameter"): 1,
            ("end_transaction", "success"): 1,
            ("unknown", "request_code_not_supported"): 3,
        }
        assert page.value("escrowmq_refusals_total", error="topic_illegal") == 1
        one_way = page.value("rocketmq_rpc_latency_count", result="oneway")
        assert (
            one_way == page.value("rocketmq_rpc_latency_milliseconds_count", result="oneway") == 1
        )


async def test_the_page_tells_how_the_broker_itself_is(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"x")
        advance(server, 7_000)
        page = await scrape(server)
        assert page.value("escrowmq_ready") == page.value("escrowmq_build_info") == 1
        assert page.value("escrowmq_uptime_seconds") == 7
        assert page.value("escrowmq_recovery_seconds") > 0
        assert page.value("escrowmq_connections") == 1
        assert page.value("escrowmq_disk_free_bytes") > 0
        assert page.value("escrowmq_inbox_commands", lane="messages") == 0
        assert page.value("rocketmq_processor_watermark", processor="send") == 0
        assert page.value("rocketmq_broker_permission") == 6
        assert page.value("rocketmq_storage_message_reserve_time") == 7_000
        assert page.value("process_resident_memory_bytes") > 10_000_000
        assert page.value("process_open_fds") > 3
        server.limits.note("reader_stalled", 0.0)
        server.broker.store.failure = OSError("no more")
        page = await scrape(server)
        assert page.value("escrowmq_limits_reached_total", limit="reader_stalled") == 1
        assert page.value("escrowmq_ready") == page.value("rocketmq_broker_permission") == 0


async def test_a_missing_pipeline_is_a_number(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.OBEY_VERDICTS)
        advance(server, 600_000)
        assert (await scrape(server)).value("escrowmq_pipeline_away_seconds") == 600


async def test_while_the_store_recovers_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover = Server._recover
    seen = []

    async def watched_recover(self: Server, store_host: bytes) -> Broker:
        seen.append(await scrape(self))
        return await recover(self, store_host)

    monkeypatch.setattr(Server, "_recover", watched_recover)
    async with watched(tmp_path) as server:
        assert [page.value("escrowmq_ready") for page in seen] == [0]
        assert "escrowmq_build_info" in seen[0]
        assert (await scrape(server)).value("escrowmq_ready") == 1


async def test_every_metric_on_the_page_is_declared_with_its_labels(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer = await shop(server)
        held = [await peer.ask(SEND, half(key), b"x") for key in ("t1", "t2", "t3")]
        await peer.ask(END, ending(held[0], COMMIT))
        await peer.ask(END, ending(held[1], ROLLBACK))
        await peer.ask(PULL, pulling())
        server.broker.meta.set_offset("shop", "orders", 1, 0)
        told = ReportLedgersHeader(pipeline="p")
        await ask(peer, NativeCode.REPORT_LEDGERS, told, [LedgerReportRow(name="shop")])
        page = await scrape(server)
    declared = {one.name: one for one in metric_table.METRICS}
    declared |= {one.also: one for one in metric_table.METRICS if one.also}
    for name, family in page.items():
        metric = declared[name]
        assert (family.kind, family.help) == (metric.kind, metric.meaning)
        common = metric_table.COMMON_LABELS if name.startswith("rocketmq_") else ()
        found = {frozenset(dict(labels)) - {"le"} for _, labels in family.samples}
        assert found == {frozenset((*common, *metric.labels))}, name
    # Only metrics without any event may be missing.
    quiet = {"alert_firing", "send_to_dlq", "timing", "background", "pop_redeliveries"}
    quiet |= {"limits_reached", "refusals", "left_out", "check_round_outcomes"}
    for name in declared.keys() - page.keys():
        assert any(word in name for word in quiet), name


def test_metrics_are_named_as_prometheus_wants() -> None:
    names = [one.name for one in metric_table.METRICS]
    assert len(names) == len(set(names))
    for one in metric_table.METRICS:
        assert re.fullmatch(r"(rocketmq|escrowmq|process)_[a-z_]+", one.name)
        assert (one.kind == "counter") == one.name.endswith("_total")


async def test_a_page_that_fails_says_so_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched(tmp_path) as server:
        vitals = server.broker.vitals
        server.broker.vitals = None  # type: ignore[assignment] # forces an unexpected error
        assert (await get(server, "/metrics"))[0] == 500
        assert (await get(server, "/healthz"))[0] == 200
        server.broker.vitals = vitals
        await scrape(server)
        assert events(caplog) == ["page_failed"]


async def test_scrapes_at_the_same_time_share_one_page(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        page = MetricsPage(lambda: server.broker, cluster="c", name="b")
        hung_up, *others = [asyncio.ensure_future(page()) for _ in range(3)]
        await asyncio.sleep(0)
        hung_up.cancel()
        first, second = await asyncio.gather(*others)
        assert first is second
        assert (await page()) is not first
