"""Fuzz a real broker with spoiled frames: ``python -m tests.fuzz.broker [--frames N] [--seed S]``.

Many short connections send frames that are sound, spoiled, truncated, oversized or not frames at
all, and end in every way a connection can end. Meanwhile, ordinary clients keep sending, pulling
and committing. The broker must not crash, must log only that limits were reached, must answer the
ordinary clients, and must leak neither memory nor sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import secrets
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.frames import FrameSplitter, encode_request
from tests.crash.long import say
from tests.fuzz.remoting import SOUND_FRAMES, Parts, spoil
from tests.fuzz.served import Served, served
from tests.interop.remoting import Frame as CapturedFrame
from tests.unit.broker.test_limits import pulling
from tests.unit.broker.wire import COMMIT, END, SEND, Peer, ending, half, sending

DEFAULT_FRAMES = 2_000_000
SEED_BITS = 32
CAPTURES = Path(__file__).parents[1] / "interop" / "captures"
NATIVE_CODES = range(30_000, 30_100)
#: Concurrent connections that send spoiled frames.
ABUSERS = 16
FRAMES_PER_CONNECTION = 64
NOT_SUPPORTED = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
LAST_OPAQUE = 123_456_789
LAST = encode_request(9_999, LAST_OPAQUE)
OVERSIZED = (2**31 - 1).to_bytes(4)
#: Caches, name tables and the allocator fill during this share of the frames, then growth ends.
WARM_UP = 0.25
GROWTH_BYTES_MAX = 64 << 20
PATIENCE_S = 30.0
ABUSER_PATIENCE_S = 0.05
#: The only kind of log line that the broker may write.
EXPECTED = " WARNING escrowmq.broker.net.limits "
#: Small checkpoints, so that memory waiting for one is not mistaken for a leak.
SETTINGS = ("store.checkpoint_bytes=8388608", "store.durability=os")


ODD: tuple[object, ...] = (
    *("", "-1", "0", "9" * 30, "1e9", "true", "null", "\x00", "\U0001f600", "%RETRY%"),
    *("a" * 5_000, "a/../../b", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "x\x01y\x02z", "*", "||"),
    *(None, True, -1, 2**31, 2**63, 2**70, 1.5, [], [[]], {}, {"a": {"b": 1}}),
)


class Found(Exception):
    """The fuzzer has found a fault."""


def captured() -> Iterator[bytes]:
    """Yield requests of real clients."""
    for path in sorted(CAPTURES.glob("*.json")):
        for exchange in json.loads(path.read_text(encoding="utf-8"))["exchanges"]:
            request: dict[str, Any] = exchange["request"]
            body = base64.b64decode(request.get("body_base64", ""))
            yield CapturedFrame(
                code=request["code"],
                fields=request["fields"],
                body=body or request.get("body", "").encode(),
                flag=request["flag"],
                language=request["language"],
                version=request["version"],
            ).encode()


def ours(random: Random) -> bytes:
    """Make a request with one of native codes, or a code near them."""
    body = random.choice((b"", b"{}", random.randbytes(40), b"ARROW1\0\0" + random.randbytes(200)))
    return encode_request(random.choice(NATIVE_CODES), random.randrange(1 << 31), body=body)


SOUND = [*SOUND_FRAMES, *captured()]


def odd(random: Random, frame: bytes) -> bytes:
    """Return the frame with an unexpected value, or with a field removed."""
    parts = Parts.of(frame)
    if parts.header_type:
        spoilt = spoil(random, parts.fields) if random.random() < 0.2 else parts.fields
        return parts._replace(fields=spoilt).join()
    header: dict[str, Any] = json.loads(parts.header)
    fields: dict[str, Any] = header.setdefault("extFields", {})
    # Rarely change the header's own fields: the broker stops reading after an invalid frame.
    changed = header if random.random() < 0.02 else fields
    key = random.choice(sorted(changed) or ["odd"])
    if random.random() < 0.1 and key in changed:
        del changed[key]
    else:
        changed[key] = random.choice(ODD)
    return parts._replace(header=json.dumps(header).encode()).join()


def with_odd_body(random: Random, frame: bytes) -> bytes:
    """Return the frame with a spoiled body."""
    parts = Parts.of(frame)
    return parts._replace(body=spoil(random, parts.body)).join()


def broken(random: Random, frame: bytes) -> bytes:
    """Return bytes that are no valid frame, or hardly one."""
    return random.choice(
        (
            spoil(random, frame),
            frame[: random.randrange(len(frame))],
            OVERSIZED + frame,
            random.randbytes(random.randrange(1, 300)),
        )
    )


def abuse(random: Random, counts: Counter[str]) -> bytes:
    """Return everything that one connection sends."""
    pieces: list[bytes] = []
    for _ in range(random.randrange(1, FRAMES_PER_CONNECTION)):
        counts["frames"] += 1
        frame = ours(random) if random.random() < 0.05 else random.choice(SOUND)
        kind = random.random()
        if kind < 0.65:
            pieces.append(odd(random, frame))
        elif kind < 0.97:
            pieces.append(with_odd_body(random, frame))
        else:
            # The broker must not read anything after this piece.
            pieces.append(broken(random, frame))
            counts["broken"] += 1
    return b"".join(pieces)


async def read_to_the_last(reader: asyncio.StreamReader, counts: Counter[str]) -> None:
    """Read until the last frame is answered, or the connection is cut."""
    splitter = FrameSplitter()
    while data := await reader.read(1 << 20):
        for frame in splitter.feed(data):
            counts["answers"] += 1
            counts["successes"] += frame.code == ResponseCode.SUCCESS
            if frame.opaque == LAST_OPAQUE and frame.code == NOT_SUPPORTED:
                return


async def abuser(served: Served, random: Random, counts: Counter[str], frames: int) -> None:
    """Open one connection after another until enough frames are sent."""
    host, _, port = served.address.rpartition(":")
    while counts["frames"] < frames:
        counts["connections"] += 1
        reader, writer = await asyncio.open_connection(host, int(port))
        with suppress(ConnectionError, TimeoutError):
            broken_before = counts["broken"]
            writer.write(abuse(random, counts))
            # After an invalid or incomplete frame there may never be an answer.
            patience_s = ABUSER_PATIENCE_S if counts["broken"] > broken_before else PATIENCE_S
            ending = random.random()
            if ending < 0.1:  # Reset the connection, whether or not the answers were read.
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
            elif ending < 0.9:  # Read the answers up to the last.
                writer.write(LAST)
                try:
                    async with asyncio.timeout(patience_s):
                        await read_to_the_last(reader, counts)
                except TimeoutError:
                    if patience_s == PATIENCE_S:
                        raise Found("a connection got no answer") from None
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def ordinary(served: Served, waits: list[float], done: asyncio.Event) -> None:
    """A correct client, which must be answered all the time."""
    peer = await Peer.to(served.address)
    number = 0
    while not done.is_set():
        number += 1
        started = time.perf_counter()
        async with asyncio.timeout(PATIENCE_S):
            sent = await peer.ask(SEND, sending("ordinary"), b"x")
            held = await peer.ask(SEND, half(f"key-{id(peer)}-{number}"), b"y")
            ended = await peer.ask(END, ending(held, COMMIT))
            pulled = await peer.ask(
                RequestCode.PULL_MESSAGE, pulling(topic="ordinary", messages_max=1)
            )
        waits.append((time.perf_counter() - started) / 4)
        codes = [sent.code, held.code, ended.code, pulled.code]
        if codes != [ResponseCode.SUCCESS] * 4:
            raise Found(f"an ordinary client was answered with {codes}")
        await asyncio.sleep(0.01)
    await peer.closed()


async def attack(served: Served, seed: int, frames: int) -> Counter[str]:
    """Send this many frames, and watch memory, sockets and answers."""
    counts: Counter[str] = Counter()
    waits: list[float] = []
    done = asyncio.Event()
    clients = [asyncio.create_task(ordinary(served, waits, done)) for _ in range(2)]
    memory: dict[float, int] = {}
    for step in (WARM_UP, 1.0):
        async with asyncio.TaskGroup() as group:
            for number in range(ABUSERS):
                random = Random(f"{seed}/{step}/{number}")
                group.create_task(abuser(served, random, counts, round(frames * step)))
        memory[step] = served.usage().anonymous_bytes
        say(f"{counts['frames']} frames: {memory[step] >> 20} MB, {served.sockets()} sockets")
    done.set()
    await asyncio.gather(*clients)
    async with asyncio.timeout(PATIENCE_S):
        while served.sockets() > idle_sockets(served):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    grown = memory[1.0] - memory[WARM_UP]
    if grown > GROWTH_BYTES_MAX:
        raise Found(f"memory grew by {grown >> 20} MB")
    waits.sort()
    counts["asked"] = len(waits) * 4
    counts["p50_us"] = round(waits[len(waits) // 2] * 1e6)
    counts["most_us"] = round(waits[-1] * 1e6)
    counts["grown_kb"] = grown >> 10
    return counts


_idle: dict[int, int] = {}


def idle_sockets(served: Served) -> int:
    """Return the broker's socket count from before any client connected."""
    return _idle.setdefault(served.process.pid, served.sockets())


def fuzz(seed: int, frames: int, directory: Path) -> Counter[str]:
    """Start a broker, attack it and stop it; raise ``Found`` if something is wrong."""
    with served(directory, *SETTINGS) as broker:
        idle_sockets(broker)
        counts = asyncio.run(attack(broker, seed, frames))
        if broker.process.poll() is not None:
            raise Found(f"the broker ended by itself: {broker.process.returncode}")
        code = broker.stop()
        judge_lines(broker.lines())
        if code:
            raise Found(f"it ended with {code}")
    return counts


def judge_lines(lines: list[str]) -> None:
    """Raise ``Found`` if the log says anything except that limits were reached."""
    unexpected = [line for line in lines if EXPECTED not in line]
    if unexpected:
        raise Found(f"it said {unexpected[:20]}")


def main(words: list[str] | None = None) -> int:
    """Fuzz; return 1 if a fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.broker")
    parser.add_argument("--frames", type=int, default=DEFAULT_FRAMES)
    parser.add_argument("--seed", type=int, default=secrets.randbits(SEED_BITS))
    arguments = parser.parse_args(words)
    say(f"broker: seed {arguments.seed}")
    with tempfile.TemporaryDirectory(prefix="escrowmq-fuzz-") as directory:
        try:
            counts = fuzz(arguments.seed, arguments.frames, Path(directory))
        except Exception:  # noqa: BLE001 - every exception is a finding
            say(traceback.format_exc())
            return 1
    say("nothing found: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
