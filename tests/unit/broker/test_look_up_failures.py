"""A look-up process that cannot start or breaks its protocol is killed, and the log says why."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from escrowmq.broker.checks import look_up_process
from escrowmq.broker.checks.look_up_process import LookUpProcess
from escrowmq.model.errors import RequestRefused, Unavailable
from tests.unit.broker.look_up_runs import (
    COMMAND,
    PATIENT,
    SkippingLoop,
    failure,
    look_up_request,
    run,
)
from tests.unit.logged import event_of

CONFIGURED = """
import os, sys
from escrowmq.protocol.look_up.frames import call_splitter, encode_reply
from escrowmq.protocol.look_up.messages import *
splitter = call_splitter()
def say(*replies):
    for reply in replies:
        os.write(1, encode_reply(reply))
def hear():
    while True:
        for call in splitter.feed(os.read(0, 65536)):
            return call
hear()
say(Configured())
call = hear()
"""
UNKNOWN = "outcomes=['unknown'], reasons=['']"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("pass", "the process ended with 0"),
        ("import sys; sys.exit(3)", "the process ended with 3"),
        ("print('hello, this is no frame', flush=True); input()", "look_up_malformed"),
        ("import os; os.write(1, b'\\xff' * 4); input()", "bytes_max=4194304"),
        # Another version.
        (CONFIGURED.replace("Configured()", "Configured(version=2)"), "version=2"),
        # It says something before it is asked.
        (
            CONFIGURED.replace("say(Con", "say(Known(number=1), Con"),
            "the answer belongs to no request",
        ),
        (
            CONFIGURED + "say(Known(number=call.number + 1)); input()",
            "the answer belongs to no request",
        ),
        (
            CONFIGURED + "say(*[Known(number=call.number)] * 2); input()",
            "the answer belongs to no request",
        ),
        (
            CONFIGURED + f"say(LookUpAnswer(number=1, {UNKNOWN})); input()",
            "the answer belongs to no request",
        ),
        (CONFIGURED + "os.write(1, b'\\0\\0\\0\\1\\xc1'); input()", "look_up_malformed"),
        (CONFIGURED + "os.close(1); input()", "closed its output"),
    ],
)
def test_a_process_that_breaks_the_protocol_is_killed(
    program: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        process = LookUpProcess((sys.executable, "-c", program), {}, PATIENT)
        await process.start()
        errors: list[Unavailable] = []
        # A valid answer may arrive before the invalid one.
        while not errors:
            try:
                await process.known()
            except Unavailable as error:
                errors.append(error)
        assert errors[0].code == "look_up_failed"
        assert process.pid is None
        await process.stop()

    run(work())
    (record,) = caplog.records
    assert event_of(record) == "look_up_process_failed"
    assert why in vars(record)["why"]


def test_an_answer_with_other_rows_than_its_request_is_garbage() -> None:
    program = CONFIGURED + f"say(LookUpAnswer(number=call.number, {UNKNOWN})); input()"

    async def work() -> None:
        process = LookUpProcess((sys.executable, "-c", program), {}, PATIENT)
        await process.start()
        error = await failure(process.look_up(look_up_request("u", 2)))
        assert "the answer belongs to no request" in str(error)
        await process.stop()

    run(work())


def test_a_process_that_never_gets_ready_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_up_process, "START_S", 0.05)

    async def work() -> None:
        process = LookUpProcess((sys.executable, "-c", "input()"), {})
        await process.start()
        assert "does not start" in str(await failure(process.known()))
        await process.stop()

    run(work())


def test_the_pause_before_a_restart_grows_to_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> list[int]:
        process = LookUpProcess(("/no/such/program",), {})
        await process.start()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        pauses = []
        for _ in range(9):
            error = await failure(process.known())
            pauses.append(error.retry_after_ms)
            # During the pause nothing is started.
            assert str(await failure(process.known())) == str(error)
            loop.skipped_s += error.retry_after_ms / 1_000
        await process.stop()
        return pauses

    assert run(work()) == [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]
    (record,) = caplog.records
    assert (event_of(record), vars(record)["why"]) == (
        "look_up_process_failed",
        "No such file or directory",
    )


def test_no_secret_is_shown(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = {"shop": "postgresql://shop:open-sesame@127.0.0.1:1/orders"}

    async def work() -> str:
        process = LookUpProcess(COMMAND, secret, PATIENT)
        await process.start()
        said = [repr(await process.known()), repr(process), repr(vars(process))]
        assert process.pid is not None
        shown = Path(f"/proc/{process.pid}")
        said += [(shown / name).read_text(encoding="utf-8") for name in ("cmdline", "environ")]
        os.kill(process.pid, signal.SIGSTOP)
        asked = asyncio.ensure_future(process.known())
        await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGKILL)
        said.append(repr(await failure(asked)))
        await process.stop()
        return " ".join(said)

    with caplog.at_level(logging.DEBUG):
        said = run(work())
    output = capfd.readouterr()
    assert "ledger_silent" in output.err, "the log of the process goes to the log of the broker"
    assert output.out == ""
    assert "sesame" not in said + output.err + caplog.text


def test_too_many_ledgers_are_refused() -> None:
    with pytest.raises(RequestRefused, match="at most 256"):
        LookUpProcess(COMMAND, {str(number): "" for number in range(257)})
