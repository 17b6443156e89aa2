"""What the store costs, as ratios against a baseline of the same run.

    make bench NAME=store [ARGS="append durable"]

Prints one JSON object per figure.  Every ratio is the median over runs in which ours and the
baseline alternate, so that a busy machine slows both.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from escrowmq.broker.writer import Writer
from escrowmq.model.clock import SystemClock
from escrowmq.model.message import Message
from escrowmq.protocol.stored_message import encoded_size
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk import OsDisk
from escrowmq.store.frames import HEAD_BYTES, stated_head
from escrowmq.store.recovery import Found, open_store
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Append, End, Held, Prepare
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import Placed
from escrowmq.transaction.states import Resolution, State
from escrowmq.transaction.table import NewRows

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
NOW_MS = 1_700_000_000_000
RUNS = 7


def report(figure: str, value: float, unit: str, **details: object) -> None:
    """One figure, one line."""
    print(json.dumps({"figure": figure, "value": round(value, 4), "unit": unit, **details}))
    sys.stdout.flush()


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory on a real disk; the default for temporary files may be memory."""
    base = Path(os.environ.get("ESCROWMQ_BENCH_DIR", "."))
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def opened(path: Path, **config: object) -> tuple[Store, Found]:
    """A store with room for everything."""
    path.mkdir(exist_ok=True)
    return open_store(OsDisk(path), StoreConfig(**config), CheckPolicy(), HOST)  # type: ignore[arg-type]


def message(number: int, body: bytes, queue_id: int = 0) -> Message:
    """A message as a stock client would send it."""
    key = f"7F000001000018B4AAC2{number:012X}"
    order = f"order-{number}"
    properties = (
        f"UNIQ_KEY\x01{key}\x02KEYS\x01{order}\x02TAGS\x01paid\x02TRAN_MSG\x01true\x02"
        f"PGROUP\x01orders\x02WAIT\x01true\x02"
    ).encode()
    return Message(
        topic="order-paid",
        queue_id=queue_id,
        body=body,
        properties=properties,
        tags="paid",
        keys=(order,),
        unique_key=key,
        born_at_ms=NOW_MS,
    )


def alternate(
    ours: Callable[[int], float], baseline: Callable[[int], float], runs: int = RUNS
) -> tuple[float, float, float]:
    """Medians of both and of their ratio; the order changes from run to run."""
    pairs = []
    for run in range(-1, runs):
        order = (ours, baseline) if run % 2 else (baseline, ours)
        results = {work: work(run) for work in order}
        if run >= 0:  # The first warms up.
            pairs.append((results[ours], results[baseline]))
    return (
        statistics.median(mine for mine, _ in pairs),
        statistics.median(bare for _, bare in pairs),
        statistics.median(mine / bare for mine, bare in pairs),
    )


# CPU per message.


def bench_append() -> None:
    """Encode, append, state table and queue entry, in batches of 100."""
    batches, size = 200, 100
    commands = [
        tuple(message(batch * size + n, os.urandom(300)) for n in range(size))
        for batch in range(batches)
    ]
    spread = [
        tuple(msgspec.structs.replace(one, queue_id=n % 4) for n, one in enumerate(batch))
        for batch in commands
    ]
    with scratch() as path:
        bare = os.open(path / "bare", os.O_RDWR | os.O_CREAT)
        store, _ = opened(path / "store", durability="os")
        frames: list[tuple[bytes, ...]] = []
        place = 0

        def baseline(_run: int) -> float:
            """Checksum of each body and of each frame, and the write: the same bytes."""
            nonlocal place
            started = time.process_time()
            for batch, written in zip(commands, frames, strict=True):
                for one in batch:
                    zlib.crc32(one.body)
                for frame in written:
                    zlib.crc32(frame)
                    os.pwrite(bare, frame, place)
                    place += len(frame)
            return (time.process_time() - started) / (batches * size) * 1e6

        def transactions(run: int) -> float:
            """One transaction of 100 half messages to one queue, committed, in each batch."""
            return whole_transactions(run, commands)

        def to_four_queues(run: int) -> float:
            """The same, to four queues in turn."""
            return whole_transactions(run + 1_000, spread)

        def whole_transactions(run: int, batches_of: list[tuple[Message, ...]]) -> float:
            started = time.process_time()
            for number, batch in enumerate(batches_of):
                prepare = Prepare(group="orders", transaction_id=f"{run}-{number}", messages=batch)
                held = store.execute(prepare, NOW_MS).reply
                assert isinstance(held, Held)
                store.execute(
                    End(half_offset=held.half_offset, resolution=Resolution.COMMIT, by="bench"),
                    NOW_MS,
                )
                store.sync()
            return (time.process_time() - started) / (batches * size) * 1e6

        def singles(run: int) -> float:
            """100 transactions of one half message each, committed, in each batch."""
            started = time.process_time()
            for batch in commands:
                held = [
                    store.execute(
                        Prepare(
                            group="orders",
                            transaction_id=f"{run}{one.unique_key}",
                            messages=(one,),
                        ),
                        NOW_MS,
                    ).reply
                    for one in batch
                ]
                for one in held:
                    assert isinstance(one, Held)
                    store.execute(
                        End(half_offset=one.half_offset, resolution=Resolution.COMMIT, by="bench"),
                        NOW_MS,
                    )
                store.sync()
            return (time.process_time() - started) / (batches * size) * 1e6

        def ordinary(_run: int) -> float:
            """Ordinary messages, visible at once."""
            started = time.process_time()
            for batch in commands:
                store.execute(Append(messages=batch), NOW_MS)
                store.sync()
            return (time.process_time() - started) / (batches * size) * 1e6

        for figure, ours in (
            ("append_batch100_ratio", transactions),
            ("append_batch100_to_4_queues_ratio", to_four_queues),
            ("append_ordinary100_ratio", ordinary),
            ("append_single_transactions_ratio", singles),
        ):
            frames = frames_of(store, ours, batches)
            mine, base, ratio = alternate(ours, baseline)
            report(figure, ratio, "x", us_per_message=mine, baseline_us=base)
        store.log.close()
        os.close(bare)


def frames_of(store: Store, work: Callable[[int], float], batches: int) -> list[tuple[bytes, ...]]:
    """The frames that one run writes, by batch."""
    start = store.log.end
    work(-2)
    frames = []
    while start < store.log.end:
        head = stated_head(store.log.read(start, HEAD_BYTES))
        assert head is not None
        frames.append(store.log.read(start, head.length))
        start += head.length
    each = len(frames) // batches
    return [tuple(frames[at : at + each]) for at in range(0, len(frames), each)]


# Bytes.


def bench_bytes() -> None:
    """The log's bytes per committed transaction over the half message's own."""
    transactions = 1_000
    with scratch() as path:
        store, _ = opened(path / "store", durability="os")
        own = 0
        for number in range(transactions):
            one = message(number, os.urandom(1024))
            own += encoded_size(one, len(HOST))
            commit(store, one)
        report("disk_bytes_per_commit_ratio", store.log.end / own, "x", bytes=store.log.end)
        store.log.close()


def commit(store: Store, one: Message, transaction_id: str | None = None) -> None:
    """One transaction of one message, all the way."""
    prepare = Prepare(
        group="orders", transaction_id=transaction_id or one.unique_key, messages=(one,)
    )
    held = store.execute(prepare, NOW_MS).reply
    assert isinstance(held, Held)
    store.execute(
        End(half_offset=held.half_offset, resolution=Resolution.COMMIT, by="bench"), NOW_MS
    )
    store.sync()


# Memory and scans.


def bench_undecided() -> None:
    """Ten million undecided transactions of one message each: bytes each, and the due scan."""
    count = 10_000_000
    placed = Placed(queues=[0], sizes=[504], crcs=[1], tags=[2])
    with scratch() as path:
        store, _ = opened(path / "store", durability="os")
        table = store.table
        gc.collect()
        before = resident_bytes()
        for number in range(count):
            table.insert(
                NewRows(
                    first=number,
                    origin=0,
                    state=State.PREPARED,
                    stored_at_ms=NOW_MS,
                    log_offset=number * 600,
                    next_at_ms=[NOW_MS + number % 60_000],
                    transaction_id=f"7F000001000018B4AAC2{number:012X}",
                    placed=placed,
                )
            )
        gc.collect()
        used = resident_bytes() - before
        report("undecided_bytes", used / count, "B", count=count)
        column = np.arange(count, dtype=np.int64) % 60_000 + NOW_MS
        due_at_ms = NOW_MS + 5

        def ours(_run: int) -> float:
            for chunk in table.chunks.values():
                chunk.due_from_ms = 0  # So that no chunk is skipped: the worst case.
            started = time.perf_counter()
            found = table.due(due_at_ms, 1_000_000)
            took = time.perf_counter() - started
            assert len(found) == np.count_nonzero(column <= due_at_ms)
            return took * 1e3

        def baseline(_run: int) -> float:
            started = time.perf_counter()
            np.flatnonzero(column <= due_at_ms)
            return (time.perf_counter() - started) * 1e3

        mine, base, ratio = alternate(ours, baseline)
        report("undecided_scan_ratio", ratio, "x", ms=mine, baseline_ms=base)
        store.log.close()


def resident_bytes() -> int:
    """What this process keeps in memory of its own; pages of its libraries do not count."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


# Transactions per second.


def bench_durable() -> None:
    """Durable transactions against those that only the kernel has, and against the bare disk."""
    with scratch() as path:
        numbers = iter(range(10**9))

        def rate(durability: str, in_flight: int, count: int) -> float:
            place = path / f"store-{next(numbers)}"
            return asyncio.run(transactions_per_second(place, durability, in_flight, count))

        def bare_flushes(_run: int) -> float:
            """Flushes per second of appends of the size of a half message's frame."""
            file = os.open(path / f"bare-{next(numbers)}", os.O_RDWR | os.O_CREAT)
            data = os.urandom(600)
            started = time.perf_counter()
            for number in range(500):
                os.pwrite(file, data, number * len(data))
                os.fdatasync(file)
            took = time.perf_counter() - started
            os.close(file)
            return 500 / took

        mine, base, ratio = alternate(
            lambda _run: rate("fsync", 256, 8_000), lambda _run: rate("os", 256, 8_000)
        )
        report("durable_256_ratio", ratio, "x", per_second=mine, os_per_second=base)
        mine, base, ratio = alternate(lambda _run: rate("fsync", 1, 300), bare_flushes)
        report("durable_1_ratio", 2 * ratio, "x", per_second=mine, flushes_per_second=base)


async def transactions_per_second(path: Path, durability: str, in_flight: int, count: int) -> float:
    """Half message, then commit, each acknowledged, in so many tasks at once."""
    store, _ = opened(path, durability=durability)
    writer = Writer(store, SystemClock())
    body = os.urandom(300)
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            one = message(number, body, queue_id=number % 4)
            prepare = Prepare(group="orders", transaction_id=one.unique_key, messages=(one,))
            held = (await writer.submit(prepare)).reply
            assert isinstance(held, Held)
            ending = End(half_offset=held.half_offset, resolution=Resolution.COMMIT, by="bench")
            decision = await writer.submit(ending)
            assert decision.refused is None

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(client())
    took = time.perf_counter() - started
    await writer.close()
    return count / took


# Restarts.


def bench_restart() -> None:
    """A restart after SIGKILL: it must not grow with the log, and a full replay must be fast."""
    with scratch() as path:
        took = {}
        for gib in (1, 4):
            place = path / f"store-{gib}"
            place.mkdir()
            fill_and_die(place, gib)
            runs = []
            for _ in range(3):
                started = time.perf_counter()
                store, found = opened(place)
                runs.append(time.perf_counter() - started)
                assert not found.rebuilt_because
                # Left open and unclean, as a kill would leave it.
                store.log.close()
                store.keys.close()
            took[gib] = runs[0]
            if gib == 1:
                replay(place)
            shutil.rmtree(place)
        report(
            "restart_4g_minus_1g_s",
            took[4] - took[1],
            "s",
            restart_1g_s=took[1],
            restart_4g_s=took[4],
        )


def fill_and_die(path: Path, gib: int) -> None:
    """Fill a store in a child process that kills itself without a word."""
    child = subprocess.run([sys.executable, __file__, "--fill", str(path), str(gib)], check=False)
    assert child.returncode == -signal.SIGKILL, child.returncode


def fill(path: Path, gib: int) -> None:
    """Committed transactions of 1 KiB, with checkpoints, until the log is that long; then die."""
    store, _ = opened(path, durability="os")
    body = os.urandom(1024)
    number = 0
    while store.log.end < gib * 1024**3:
        for _ in range(500):
            number += 1
            one = message(number, body, queue_id=number % 4)
            prepare = Prepare(group="orders", transaction_id=one.unique_key, messages=(one,))
            held = store.execute(prepare, NOW_MS + number).reply
            assert isinstance(held, Held)
            ending = End(half_offset=held.half_offset, resolution=Resolution.COMMIT, by="bench")
            store.execute(ending, NOW_MS + number)
        store.sync()
        if store.checkpoint_due:
            store.checkpoint()
    os.kill(os.getpid(), signal.SIGKILL)


def replay(path: Path) -> None:
    """Throw everything but the log away, and replay it."""
    for name in ("checkpoint", "checkpoint.old"):
        (path / name).unlink(missing_ok=True)
    rates = []
    for _ in range(3):
        started = time.perf_counter()
        store, found = opened(path)
        took = time.perf_counter() - started
        assert found.replayed_from == 0
        rates.append(found.log_end / took / 1e6)
        store.log.close()
        store.keys.close()
        for name in ("checkpoint", "checkpoint.old"):
            (path / name).unlink(missing_ok=True)
    report("replay_mb_per_s", statistics.median(rates), "MB/s", frames=found.frames)


FIGURES = {
    "append": bench_append,
    "bytes": bench_bytes,
    "durable": bench_durable,
    "undecided": bench_undecided,
    "restart": bench_restart,
}


def main(arguments: list[str]) -> None:
    """Run the named groups of figures, or all."""
    if arguments[:1] == ["--fill"]:
        fill(Path(arguments[1]), int(arguments[2]))
        return
    for name in arguments or FIGURES:
        FIGURES[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
