"""Fuzz the protocol with spoiled frames: ``python -m tests.fuzz.remoting [--frames N] [--seed S]``.

Each frame is a sound one with something changed, fed in pieces to a splitter. Every frame that the
splitter yields is read as every header and every body that exists. Only ``ProtocolViolation`` may
be raised, no splitter may keep more than one frame, and memory must not grow.
"""

from __future__ import annotations

import argparse
import gc
import resource
import secrets
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple, TypeVar

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.batch_message import decode_batch
from escrowmq.protocol.message.filter import parse_filter
from escrowmq.protocol.message.sent_facts import read_sent_facts
from escrowmq.protocol.remoting.admin_headers import CreateTopicHeader, parse_attributes
from escrowmq.protocol.remoting.bodies import JsonBody, read_body
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.consumer_headers import PullHeader
from escrowmq.protocol.remoting.frames import FrameSplitter, RemotingFrame, encode_request
from escrowmq.protocol.remoting.headers import Header, read_fields, read_header
from escrowmq.protocol.remoting.send_headers import read_send_header
from tests.crash.long import say
from tests.unit.protocol import remoting_cases as cases

DEFAULT_FRAMES = 100_000
SEED_BITS = 32
FRAME_BYTES_MAX = 1 << 20
#: Caches fill during the first frames; after that, memory must not grow.
WARM_UP_FRAMES = 1_000
GROWTH_BLOCKS_MAX = 150_000
GROWTH_BYTES_MAX = 64 << 20

SOUND_BODIES = [*cases.bodies().values(), cases.BATCH, b""]
SOUND_FRAMES = [
    *cases.frames().values(),
    *(
        encode_request(RequestCode.HEART_BEAT, number, body=body)
        for number, body in enumerate(SOUND_BODIES)
    ),
]
NASTY = (
    b"null",
    b"true",
    b"-1",
    b'"-1"',
    b"1e999",
    b'"1e999"',
    b"99999999999999999999",
    b'"99999999999999999999"',
    b'"' + b"9" * 5_000 + b'"',
    b"[]",
    b"{}",
    b'{"a":{"b":[1,2]}}',
    b'""',
    b'"\xff\xfe"',
    b'"\\ud800"',
    b'"\\u0000"',
    b"[" * 2_000,
    b'{"a":' * 2_000,
    b"\x00",
    b"\x01\x02",
    b"||",
)
EXTREMES = (0, 1, 3, 4, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0xFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF)


KindT = TypeVar("KindT")


def kinds_of(base: type[KindT]) -> list[type[KindT]]:
    """Return all classes below this one, by name."""
    below = base.__subclasses__()
    found = {*below, *(kind for one in below for kind in kinds_of(one))}
    return sorted(found, key=lambda kind: kind.__name__)


HEADERS = kinds_of(Header)
BODIES = kinds_of(JsonBody)


def spoil(random: Random, data: bytes) -> bytes:
    """Apply up to five random changes."""
    changed = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 1, 2, 5))):
        random.choice(SPOILERS)(random, changed)
    return bytes(changed)


def flip_a_bit(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def set_a_byte(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] = random.randrange(256)


def set_a_size(random: Random, data: bytearray) -> None:
    """Overwrite bytes where a frame has its sizes, or anywhere."""
    at = random.choice((0, 4, 4, random.randrange(len(data) + 1)))
    width = random.choice((2, 4, 4))
    data[at : at + width] = (random.choice(EXTREMES) & (1 << 8 * width) - 1).to_bytes(width)


def cut(random: Random, data: bytearray) -> None:
    del data[random.randrange(len(data) + 1) :]


def leave_out(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    del data[at : at + random.randrange(1, 20)]


def repeat(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = data[at : at + random.randrange(1, 60)]


def put_in(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.choice(NASTY)


def put_for_a_value(random: Random, data: bytearray) -> None:
    """Replace the bytes from a colon to the next comma or brace, mostly one value of a JSON map."""
    at = data.find(b":", random.randrange(len(data) + 1)) + 1
    ends = [end for end in (data.find(b",", at), data.find(b"}", at)) if end >= 0]
    data[at : min(ends, default=len(data))] = random.choice(NASTY)


def put_garbage(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    data[at : at + random.randrange(60)] = random.randbytes(random.randrange(60))


SPOILERS: tuple[Callable[[Random, bytearray], None], ...] = (
    flip_a_bit,
    set_a_byte,
    set_a_size,
    cut,
    leave_out,
    repeat,
    put_in,
    put_for_a_value,
    put_garbage,
)


class Parts(NamedTuple):
    """A frame split at its size fields, which ``join`` computes again."""

    header_type: int
    header: bytes
    #: The fields of a binary header; a JSON header contains its fields.
    fields: bytes
    body: bytes

    @classmethod
    def of(cls, frame: bytes) -> Parts:
        """Split a sound frame."""
        header_type, header_end = frame[4], 8 + int.from_bytes(frame[5:8])
        header, body = frame[8:header_end], frame[header_end:]
        if not header_type:
            return cls(header_type, header, b"", body)
        fields_at = 21 + int.from_bytes(header[13:17])
        return cls(header_type, header[: fields_at - 4], header[fields_at:], body)

    def join(self) -> bytes:
        """Join the parts, with their current sizes."""
        header = self.header
        if self.header_type:
            header += len(self.fields).to_bytes(4) + self.fields
        word = self.header_type << 24 | len(header)
        return (
            (4 + len(header) + len(self.body)).to_bytes(4) + word.to_bytes(4) + header + self.body
        )


def spoilt_frame(random: Random) -> bytes:
    """Spoil one part and correct the sizes, so that the part is read, or spoil the whole frame."""
    frame = random.choice(SOUND_FRAMES)
    part = random.choice(("header", "header", "fields", "body", "all"))
    if part == "all":
        return spoil(random, frame)
    parts = Parts.of(frame)
    spoilt: dict[str, Any] = {part: spoil(random, getattr(parts, part))}
    return parts._replace(**spoilt).join()


def pieces(random: Random, data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = at + random.choice((1, 7, 64, len(data)))
        yield data[at:end]
        at = end


def frames_of(random: Random, data: bytes) -> Iterator[RemotingFrame]:
    """Yield all frames up to the first violation."""
    splitter = FrameSplitter(frame_bytes_max=FRAME_BYTES_MAX)
    with suppress(ProtocolViolation):
        for piece in pieces(random, data):
            yield from splitter.feed(piece)
            assert splitter.buffered_bytes < 4 + FRAME_BYTES_MAX


def readers(frame: RemotingFrame) -> Iterator[Callable[[], object]]:
    """Yield a call for each way to read a frame."""
    ext, body = frame.ext, frame.body
    yield lambda: read_fields(ext)
    yield lambda: read_sent_facts(read_send_header(frame.code, ext).properties.encode())
    yield lambda: read_send_header(RequestCode.SEND_BATCH_MESSAGE, ext)
    yield lambda: parse_filter(read_header(PullHeader, ext).subscription)
    yield lambda: parse_attributes(read_header(CreateTopicHeader, ext).attributes)
    yield lambda: decode_batch(body)
    yield lambda: read_sent_facts(body)
    yield from (lambda kind=kind: read_header(kind, ext) for kind in HEADERS)
    yield from (lambda kind=kind: read_body(kind, body) for kind in BODIES)


def try_one(random: Random, counts: Counter[str]) -> None:
    """Spoil one frame and read it in every way."""
    data = spoilt_frame(random)
    if random.random() < 0.1:
        data += spoilt_frame(random)
    counts["frames"] += 1
    for frame in frames_of(random, data):
        counts["split"] += 1
        for read in readers(frame):
            try:
                read()
            except ProtocolViolation:
                counts["violations"] += 1
            else:
                counts["read"] += 1


def held() -> tuple[int, int]:
    """Return the memory blocks in use now, and the peak memory in bytes."""
    gc.collect()
    return sys.getallocatedblocks(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(seed: int, frames: int) -> Counter[str]:
    """Try this many frames; a fault is raised with the frame's number in a note."""
    counts: Counter[str] = Counter()
    blocks, peak_bytes = held()
    for number in range(frames):
        if number == WARM_UP_FRAMES:
            blocks, peak_bytes = held()
        try:
            # One generator per frame, so that a frame can be repeated without the ones before it.
            try_one(Random(f"{seed}/{number}"), counts)
        except Exception as error:
            error.add_note(f"seed {seed}, frame {number}")
            raise
    blocks_now, peak_bytes_now = held()
    assert blocks_now - blocks < GROWTH_BLOCKS_MAX, "memory grows"
    assert peak_bytes_now - peak_bytes < GROWTH_BYTES_MAX, "memory grows"
    return counts


def run_program(
    name: str,
    fuzz: Callable[[int, int], Counter[str]],
    default_frames: int,
    words: list[str] | None,
) -> int:
    """Fuzz as the command line says; return 1 if a fault was found."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.fuzz.{name}")
    parser.add_argument("--frames", type=int, default=default_frames)
    parser.add_argument("--seed", type=int, default=secrets.randbits(SEED_BITS))
    arguments = parser.parse_args(words)
    say(f"{name}: seed {arguments.seed}")
    try:
        counts = fuzz(arguments.seed, arguments.frames)
    except Exception:  # noqa: BLE001 - every exception is a finding
        say(traceback.format_exc())
        return 1
    say("nothing found: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return 0


def main(words: list[str] | None = None) -> int:
    """Fuzz; return 1 if a fault was found."""
    return run_program("remoting", fuzz, DEFAULT_FRAMES, words)


if __name__ == "__main__":
    sys.exit(main())
