"""The broker's look-up process: it answers, and no failure leaves a request or a process behind."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import uvloop

from escrowmq.broker.checks.look_up_process import HEALTHY_S, LookUpProcess
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.model.errors import RequestRefused
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.protocol.look_up.frames import CALL_BYTES_MAX
from escrowmq.protocol.look_up.messages import REQUESTS_MAX, ROWS_MAX
from tests.unit.broker.look_up_runs import (
    COMMAND,
    HASTY,
    PATIENT,
    Factory,
    SkippingLoop,
    failure,
    look_up_request,
    reaped,
    restarted,
    run,
)


@pytest.fixture(params=[SkippingLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def factory(request: pytest.FixtureRequest) -> Factory:
    found: Factory = request.param
    return found


@pytest.fixture
def ledger(tmp_path: Path) -> SqlLedger:
    made = SqlLedger(f"sqlite:///{tmp_path / 'shop.db'}")
    made.create()
    return made


@pytest.fixture
def urls(ledger: SqlLedger, tmp_path: Path) -> dict[str, str]:
    assert ledger.uuid()
    return {"shop": f"sqlite:///{tmp_path / 'shop.db'}"}


def test_it_looks_up_and_probes(urls: dict[str, str], ledger: SqlLedger, factory: Factory) -> None:
    uuid = ledger.uuid()

    async def work() -> None:
        process = LookUpProcess(COMMAND, urls)
        await process.start()
        assert process.pid is None, "the first request starts it"
        known, found = await asyncio.gather(
            process.known(), process.look_up(look_up_request(uuid, ROWS_MAX, wait_ms=20_000))
        )
        assert (known.faults, known.unnamed) == ({uuid: ""}, {})
        assert found.outcomes == [LedgerOutcome.ROLLED_BACK] * ROWS_MAX
        first = process.pid
        assert (await process.known()).faults == {uuid: ""}
        assert process.pid == first
        await process.stop()
        assert process.pid is None

    run(work(), factory)


def test_before_its_start_and_after_its_stop_requests_fail(urls: dict[str, str]) -> None:
    async def work() -> None:
        process = LookUpProcess(COMMAND, urls)
        assert (await failure(process.known())).code == "look_up_failed"
        await process.stop()
        await process.start()
        await process.known()
        await process.stop()
        assert "stopped" in str(await failure(process.known()))
        # It can start again.
        await process.start()
        await process.known()
        await process.stop()

    run(work())


def test_a_stop_ends_a_start_in_progress(urls: dict[str, str], factory: Factory) -> None:
    async def work() -> None:
        process = LookUpProcess(COMMAND, urls)
        for yields in range(20):
            await process.start()
            asked = asyncio.ensure_future(process.known())
            for _ in range(yields):
                await asyncio.sleep(0)
            await process.stop()
            assert (await failure(asked)).code == "look_up_failed"

    run(work(), factory)


def test_a_stop_fails_what_is_outstanding(urls: dict[str, str], factory: Factory) -> None:
    async def work() -> None:
        process = LookUpProcess(COMMAND, urls, PATIENT)
        await process.start()
        await process.known()
        pid = process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        asked = asyncio.ensure_future(process.known())
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(process.stop())
        assert "stops" in str(await failure(asked))
        # A process that hangs would be killed after a while; a canceled stop kills it at once.
        stopping.cancel()
        await asyncio.wait([stopping])
        await reaped(pid)
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})

    run(work(), factory)


def test_a_killed_process_fails_its_requests_and_is_started_again(
    urls: dict[str, str], ledger: SqlLedger, factory: Factory
) -> None:
    uuid = ledger.uuid()

    async def work() -> None:
        process = LookUpProcess(COMMAND, urls, PATIENT)
        await process.start()
        await process.known()
        first = process.pid
        assert first is not None
        # Stopped, so that the requests are in the middle when it dies.
        os.kill(first, signal.SIGSTOP)
        asked = [asyncio.ensure_future(process.look_up(look_up_request(uuid))) for _ in range(3)]
        await asyncio.sleep(0)
        os.kill(first, signal.SIGKILL)
        for one in asked:
            error = await failure(one)
            assert error.code == "look_up_failed"
        assert await restarted(process) != first
        found = await process.look_up(look_up_request(uuid, wait_ms=20_000))
        assert found.outcomes == [LedgerOutcome.ROLLED_BACK]
        await process.stop()

    run(work(), factory)


def test_a_process_that_hangs_is_killed_and_started_again(
    urls: dict[str, str], ledger: SqlLedger, factory: Factory
) -> None:
    uuid = ledger.uuid()

    async def work() -> None:
        process = LookUpProcess(COMMAND, urls, HASTY)
        await process.start()
        await process.known()
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        error = await failure(process.look_up(look_up_request(uuid, wait_ms=1)))
        assert "no answer within 0.201 s" in str(error)
        assert await restarted(process) != first
        await process.stop()

    run(work(), factory)


def test_a_canceled_request_does_not_disturb_the_others(
    urls: dict[str, str], ledger: SqlLedger
) -> None:
    uuid = ledger.uuid()

    async def work() -> None:
        process = LookUpProcess(COMMAND, urls, PATIENT)
        await process.start()
        # Two requests wait for one start, and one of them is canceled.
        first, second = (asyncio.ensure_future(process.known()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).faults == {uuid: ""}
        # The answer to a canceled request is dropped.
        third = asyncio.ensure_future(process.known())
        await asyncio.sleep(0)
        third.cancel()
        pid = process.pid
        assert (await process.known()).faults == {uuid: ""}
        assert process.pid == pid
        await process.stop()

    run(work())


def test_outstanding_requests_have_a_limit_even_when_their_callers_are_gone(
    urls: dict[str, str],
) -> None:
    async def work() -> None:
        process = LookUpProcess(COMMAND, urls, PATIENT)
        await process.start()
        await process.known()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        asked = [asyncio.ensure_future(process.known()) for _ in range(REQUESTS_MAX)]
        await asyncio.sleep(0)
        for one in asked[::2]:
            one.cancel()
        assert (await failure(process.known())).code == "look_up_busy"
        os.kill(process.pid, signal.SIGCONT)
        await asyncio.wait(asked)
        assert len((await process.known()).ledgers) == 1
        await process.stop()

    run(work())


def test_unsent_bytes_have_a_limit(urls: dict[str, str]) -> None:
    async def work() -> None:
        process = LookUpProcess(COMMAND, urls, PATIENT)
        await process.start()
        await process.known()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        large = look_up_request("u", transaction_ids=["x" * (CALL_BYTES_MAX - 1_024)])
        asked = [asyncio.ensure_future(process.look_up(large)) for _ in range(3)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = done
        assert (await failure(refused)).code == "look_up_busy"
        os.kill(process.pid, signal.SIGKILL)
        await asyncio.wait(asked)
        assert [(await failure(one)).code for one in asked].count("look_up_failed") == 2
        await process.stop()

    run(work())


def test_a_request_that_is_too_large_is_refused_and_harms_nothing(urls: dict[str, str]) -> None:
    async def work() -> None:
        process = LookUpProcess(COMMAND, urls)
        await process.start()
        large = look_up_request("u", transaction_ids=["x" * CALL_BYTES_MAX])
        with pytest.raises(RequestRefused, match="look_up_too_large"):
            await process.look_up(large)
        await process.known()
        await process.stop()

    run(work())


def test_after_a_healthy_run_the_pause_is_short_again(urls: dict[str, str]) -> None:
    async def work() -> list[int]:
        process = LookUpProcess(COMMAND, urls)
        await process.start()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        pauses = []
        for seconds in (0.0, 0.0, HEALTHY_S):
            await process.known()
            loop.skipped_s += seconds
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
            asked = asyncio.ensure_future(process.known())
            await asyncio.sleep(0)
            os.kill(process.pid, signal.SIGKILL)
            await failure(asked)
            error = await failure(process.known())
            pauses.append(round(error.retry_after_ms, -2))
            loop.skipped_s += error.retry_after_ms / 1_000
        await process.stop()
        return pauses

    assert run(work()) == [500, 1_000, 500]
