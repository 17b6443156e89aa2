"""The whole demo: a broker and its pipeline, two runs on them, and the audit of both runs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from escrowmq.demo import auditor
from escrowmq.demo.conductor import THREADS, Conductor, Tell
from escrowmq.demo.figures import Audited, DemoRun, Figures, OnPostgres
from escrowmq.demo.order_service import PLAIN, TRANSACTIONAL, OrderServiceTask
from escrowmq.demo.processes import ChildTask, DemoBroker, Processes, UpProcess, demo_failed
from escrowmq.demo.schedule import draw
from escrowmq.demo.shop import ORDERS, Shop
from escrowmq.demo.wanted import DemoOptions
from escrowmq.pipeline.audit.pins import take_pins
from escrowmq.pipeline.config import user_cache
from escrowmq.pipeline.pages.origin import this_origin

REHEARSAL = "rehearsal"
REHEARSAL_S_MAX = 180.0
_REHEARSED_S_MAX = 1.0
_LOOK_S = 0.2
AUDIT_S_MAX = 300.0
XA_S_MAX = 900.0
XA_TOPICS = ("order-paid-on-postgres", "order-paid-slowly")
TOPICS = {PLAIN: "order-paid-plain", TRANSACTIONAL: "order-paid"}

#: Short waits, so that the user sees the pipeline settle what a kill left undecided.
_CONFIG = """\
[broker]
port = 0
name_port = 0

[transaction]
check_after_ms = 1000
check_interval_ms = 1000

[pipeline]
settle_interval_ms = 500
archive = false
niceness = 0
cache_dir = {cache}

[ledger.rehearsal]
url = {rehearsal}

[ledger.orders]
url = {orders}
"""


Say = Callable[[str], None]


@contextmanager
def running(folder: Path) -> Iterator[DemoBroker]:
    """Run ``escrowmq up`` on free ports; all processes of the demo end with the block."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    config = folder / "escrowmq.toml"
    values = {
        "cache": str(user_cache()),
        "rehearsal": Shop(folder / REHEARSAL).url(ORDERS),
        "orders": Shop(folder / TRANSACTIONAL).url(ORDERS),
    }
    quoted = {name: _quoted(value) for name, value in values.items()}
    config.write_text(_CONFIG.format(**quoted), encoding="utf-8")
    processes = Processes(logs)
    try:
        up = UpProcess(processes, folder / "data", config)
        places = up.await_ready("broker")
        yield DemoBroker(
            processes=processes, up=up, broker=places["broker"], name_server=places["name"]
        )
    finally:
        processes.stop_all()


def _quoted(text: str) -> str:
    """Quote a text for TOML, where a JSON string is valid."""
    return msgspec.json.encode(text).decode()


def play(wanted: DemoOptions, say: Say, tell: Tell) -> Figures:
    """Run the demo; ``say`` gets the name of each step, ``tell`` the progress of a run."""
    folders = {mode: wanted.folder / mode for mode in TOPICS}
    faults = draw(orders=wanted.orders, kills=wanted.kills, seed=wanted.seed)
    say("starting a broker and its pipeline: escrowmq up")
    with running(wanted.folder) as place:
        _make_topics(place)
        place.up.await_ready("pipeline")
        say("a rehearsal, so that Spark has settled once before anything is measured")
        _rehearse(place, Shop(wanted.folder / REHEARSAL))
        runs: dict[str, DemoRun] = {}
        for mode, topic in TOPICS.items():
            say(f"{mode} messages: {wanted.orders:,} orders, {len(faults)} kills")
            runs[mode] = Conductor(
                place=place,
                mode=mode,
                folder=folders[mode],
                topic=topic,
                orders=wanted.orders,
                faults=faults,
                tell=tell,
            ).conduct()
        say("the audit: Spark compares orders, ledger, records and messages")
        audited = _audit(place, wanted.folder)
        on_postgres = None
        if wanted.with_xa:
            say(f"on PostgreSQL, without kills: {wanted.orders:,} orders by messages, then by XA")
            on_postgres = _compare(place, wanted)
    return Figures(
        seed=wanted.seed,
        plain=runs[PLAIN],
        transactional=runs[TRANSACTIONAL],
        audited=audited,
        on_postgres=on_postgres,
        origin=this_origin(),
    )


def _make_topics(place: DemoBroker) -> None:
    for topic in (REHEARSAL, *TOPICS.values(), *XA_TOPICS):
        words = ["escrowmq.cli.main", "topic", "create", topic, "--broker", place.broker]
        made = place.processes.start("topics", words)
        made.wait()
        place.processes.stop(made)
        if made.returncode:
            raise demo_failed("a topic cannot be created", place.processes.log("topics"))


def _rehearse(place: DemoBroker, shop: Shop) -> None:
    """Let a service die before the COMMIT of one order, and wait until the pipeline settles it.

    The first job after Spark starts takes many times as long as the later ones, which are measured.
    """
    shop.make(1)
    task = OrderServiceTask(
        mode=TRANSACTIONAL,
        name_server=place.name_server,
        group=REHEARSAL,
        folder=str(shop.folder),
        topic=REHEARSAL,
        orders=1,
        threads=1,
        max_duration_s=_REHEARSED_S_MAX,
        die_before_commit=[1],
    )
    service = place.processes.start_with(REHEARSAL, task)
    service.wait()
    place.processes.stop(service)
    until = time.monotonic() + REHEARSAL_S_MAX
    while take_pins([place.broker])[0].status.undecided:
        if time.monotonic() > until:
            what = f"the pipeline settled nothing in {REHEARSAL_S_MAX:.0f} s"
            raise demo_failed(what, place.processes.log("up"))
        time.sleep(_LOOK_S)


def _audit(place: DemoBroker, folder: Path) -> Audited:
    result = folder / "audited.json"
    task = auditor.AuditorTask(
        broker=place.broker,
        plain=(str(folder / PLAIN), TOPICS[PLAIN]),
        transactional=(str(folder / TRANSACTIONAL), TOPICS[TRANSACTIONAL]),
        cache=str(user_cache()),
        result=str(result),
    )
    _run(place, "audit", task, AUDIT_S_MAX)
    return msgspec.json.decode(result.read_bytes(), type=Audited)


def _compare(place: DemoBroker, wanted: DemoOptions) -> OnPostgres:
    # Imported only here, because psycopg is an optional dependency.
    from escrowmq.demo import xa

    folder = wanted.folder / "xa"
    folder.mkdir()
    task = xa.XaTask(
        name_server=place.name_server,
        topic=XA_TOPICS[0],
        slow_topic=XA_TOPICS[1],
        folder=str(folder),
        orders=wanted.orders,
        threads=THREADS,
        result=str(folder / "xa.json"),
    )
    _run(place, "xa", task, XA_S_MAX)
    return msgspec.json.decode(Path(task.result).read_bytes(), type=OnPostgres)


def _run(place: DemoBroker, name: str, task: ChildTask, s_max: float) -> None:
    process = place.processes.start_with(name, task)
    try:
        process.wait(s_max)
    except subprocess.TimeoutExpired:
        raise demo_failed(f"{name} takes too long", place.processes.log(name)) from None
    finally:
        place.processes.stop(process)
    if process.returncode:
        raise demo_failed(f"{name} failed", place.processes.log(name))
