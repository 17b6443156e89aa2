"""A broker is killed while it serves pop consumers: no acknowledged message comes again."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from escrowmq.protocol.remoting.codes import ResponseCode
from tests.conformance.pop_talk import Popped, ack, pop, send
from tests.conformance.talk import beat
from tests.unit.broker.wire import Peer

READY = re.compile(r"ready .*broker=(\S+)")
SENT = [f"order-{number}" for number in range(60)]


async def serve(data: Path) -> tuple[Process, Peer]:
    """Start a broker; return it and a connection."""
    ports = ("--port=0", "--name-port=0")
    command = ("-m", "escrowmq.cli.main", "serve", f"--data-dir={data}", *ports)
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE)
    assert process.stdout is not None
    while True:
        line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        assert line, "it ended"
        found = READY.search(line)
        if found is not None:
            return process, await Peer.to(found[1])


async def kill(process: Process, peer: Peer) -> None:
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await peer.closed()


async def test_an_acknowledgement_survives_a_kill(tmp_path: Path) -> None:
    acknowledged: set[str] = set()
    for life in range(3):
        process, peer = await serve(tmp_path)
        try:
            await beat(peer)
            if life == 0:
                await send(peer, *SENT)
            found: list[Popped] = await pop(peer)
            assert not acknowledged & {one.body for one in found}
            for one in found[::2]:
                assert await ack(peer, one) == ResponseCode.SUCCESS
                acknowledged.add(one.body)
        finally:
            await kill(process, peer)
    process, peer = await serve(tmp_path)
    try:
        rest: list[str] = []
        while batch := await pop(peer):
            rest += [one.body for one in batch]
        assert sorted([*rest, *acknowledged]) == sorted(SENT)
    finally:
        await kill(process, peer)
