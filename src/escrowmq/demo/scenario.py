"""The whole demo: a broker that checks by itself, two runs on it, and Spark's audit of both."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from escrowmq.demo import auditor
from escrowmq.demo.conductor import THREADS, Conductor, Tell
from escrowmq.demo.figures import Audited, DemoRun, Figures, OnPostgres
from escrowmq.demo.order_service import PLAIN, TRANSACTIONAL
from escrowmq.demo.processes import BrokerProcess, ChildTask, DemoBroker, Processes, demo_failed
from escrowmq.demo.schedule import draw
from escrowmq.demo.shop import ORDERS, Shop
from escrowmq.demo.wanted import DemoOptions
from escrowmq.pipeline.config import user_cache
from escrowmq.pipeline.pages.origin import this_origin

AUDIT_S_MAX = 300.0
XA_S_MAX = 900.0
XA_TOPICS = ("order-paid-on-postgres", "order-paid-slowly")
TOPICS = {PLAIN: "order-paid-plain", TRANSACTIONAL: "order-paid"}

#: Short waits, so that the user sees the broker settle what a kill left undecided.
_CONFIG = """\
[broker]
port = 0
name_port = 0
grpc_port = -1

[transaction]
check_after_ms = 1000
check_interval_ms = 1000

[ledger.orders]
url = {orders}
"""


Say = Callable[[str], None]


@contextmanager
def running(folder: Path) -> Iterator[DemoBroker]:
    """Run ``escrowmq serve`` on free ports; all processes of the demo end with the block."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    config = folder / "escrowmq.toml"
    orders = _quoted(Shop(folder / TRANSACTIONAL).url(ORDERS))
    config.write_text(_CONFIG.format(orders=orders), encoding="utf-8")
    processes = Processes(logs)
    try:
        broker = BrokerProcess(processes, folder / "data", config)
        yield DemoBroker(processes=processes, broker=broker)
    finally:
        processes.stop_all()


def _quoted(text: str) -> str:
    """Quote a text for TOML, where a JSON string is valid."""
    return msgspec.json.encode(text).decode()


def play(wanted: DemoOptions, say: Say, tell: Tell) -> Figures:
    """Run the demo; ``say`` gets the name of each step, ``tell`` the progress of a run."""
    folders = {mode: wanted.folder / mode for mode in TOPICS}
    faults = draw(orders=wanted.orders, kills=wanted.kills, seed=wanted.seed)
    say("starting a broker, which checks by itself: escrowmq serve")
    with running(wanted.folder) as place:
        _make_topics(place)
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
    for topic in (*TOPICS.values(), *XA_TOPICS):
        words = ["escrowmq.cli.main", "topic", "create", topic]
        words += ["--broker", place.broker.address]
        made = place.processes.start("topics", words)
        made.wait()
        place.processes.stop(made)
        if made.returncode:
            raise demo_failed("a topic cannot be created", place.processes.log("topics"))


def _audit(place: DemoBroker, folder: Path) -> Audited:
    result = folder / "audited.json"
    task = auditor.AuditorTask(
        broker=place.broker.address,
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
        name_server=place.broker.name_server,
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
