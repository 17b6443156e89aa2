"""The demo's final text: the runs side by side, and the conclusion. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.table import Table

from escrowmq.demo.figures import DemoRun, Figures, MethodFigures, OnPostgres, disagreements, found
from escrowmq.demo.schedule import Moment, Victim
from escrowmq.demo.showing import NAMES
from escrowmq.demo.speed import Row, speed_rows, step_rows
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.report import AuditReport

PLACED = (
    "All kills are SIGKILL. Some hit the order service or the broker at a random moment. The order"
    " service sends the others to itself, right before or right after the COMMIT of an order that"
    " is drawn at random, so that every run includes these two moments. The seed is {seed}. Both"
    " runs get the same kills."
)
ON_POSTGRES = "four databases on PostgreSQL, no kills"
COMPARED = (
    "Both methods pay the same orders in four databases of one PostgreSQL server, with the same"
    " number of threads and without kills. Transactional: the order commits in its own database,"
    " and messages update the other three, each in its own process. XA: PREPARE TRANSACTION in all"
    " four databases, a flush of the coordinator's decision to its log, COMMIT PREPARED in all"
    " four. Everything runs on one machine. Over a network, XA would hold its locks during the"
    " round trips as well."
)
NAME_WIDTH, FIGURE_WIDTH = 49, 14
#: Findings of an audit about orders, and their names in the demo.
DISAGREEMENTS = {
    FindingName.BUSINESS_ROW_WITHOUT_MESSAGE: "orders without a message",
    FindingName.MESSAGE_WITHOUT_BUSINESS_ROW: "messages without an order",
    FindingName.BUSINESS_ROW_WITH_SEVERAL: "orders with several messages",
}


def sections(figures: Figures) -> Iterator[tuple[str, list[Row]]]:
    """Yield headings, each with rows of a name and its value in each run."""
    plain, transactional = figures.plain, figures.transactional
    audits = figures.audited.plain, figures.audited.transactional
    yield "orders and messages, by the Spark audit", [*_audited(plain, transactional, *audits)]
    yield (
        "effects downstream that are missing or too many",
        [
            (name, _count(plain.wrong_effects[key]), _count(transactional.wrong_effects[key]))
            for key, name in NAMES.items()
        ],
    )
    yield "killed", [*_killed(plain, transactional)]
    yield "speed", [*speed_rows(plain, transactional)]
    yield (
        "time of an order, median since the last start",
        [*step_rows(plain.steps, transactional.steps)],
    )
    yield "how transactions were decided", [*_decided(figures)]


def _audited(
    plain: DemoRun, transactional: DemoRun, of_plain: AuditReport, of_transactional: AuditReport
) -> Iterator[Row]:
    yield "orders paid", _count(plain.paid), _count(transactional.paid)
    yield "messages", _count(plain.messages), _count(transactional.messages)
    for finding, name in DISAGREEMENTS.items():
        yield name, _count(found(of_plain, finding)), _count(found(of_transactional, finding))
    others = [
        sum(one.total for one in report.findings if one.name not in DISAGREEMENTS)
        for report in (of_plain, of_transactional)
    ]
    yield "anything else that was found", _count(others[0]), _count(others[1])


def _killed(plain: DemoRun, transactional: DemoRun) -> Iterator[Row]:
    for victim in Victim:
        for moment in Moment:
            counts = plain.killed(victim, moment), transactional.killed(victim, moment)
            if any(counts):
                yield f"{victim}, {moment}", _count(counts[0]), _count(counts[1])


def _decided(figures: Figures) -> Iterator[Row]:
    decided = figures.audited.decided
    none = "-"
    yield "committed, told by the order service", none, _count(decided.committed_by_producer)
    if decided.rolled_back_by_producer:
        told = _count(decided.rolled_back_by_producer)
        yield "rolled back, told by the order service", none, told
    for name, count in (
        ("undecided, committed: the row was in the ledger", decided.committed_by_ledger),
        ("undecided, rolled back: fenced in the ledger", decided.rolled_back_by_fence),
        ("undecided to this moment", decided.undecided),
    ):
        yield name, none, _count(count)
    if decided.ages_ms:
        yield "the longest was undecided for", none, f"{decided.ages_ms[-1] / 1_000:,.1f} s"
    after = figures.transactional.settled_after_s
    yield "the last was settled, after the last order", none, f"{after:,.1f} s"


def _count(value: int) -> str:
    return f"{value:,}"


def xa_sections(on_postgres: OnPostgres) -> Iterator[tuple[str, list[Row]]]:
    """Yield headings, each with rows of a name and its value for our method and for XA."""
    yield ON_POSTGRES, _xa_rows(on_postgres.ours, on_postgres.xa)
    heading = f"the same, with logistics {on_postgres.slow_ms} ms slower"
    yield heading, _xa_rows(on_postgres.slow_ours, on_postgres.slow_xa)


def _xa_rows(ours: MethodFigures, xa: MethodFigures) -> list[Row]:
    def row(name: str, show: Callable[[MethodFigures], str]) -> Row:
        return name, show(ours), show(xa)

    return [
        row("orders", lambda one: _count(one.orders)),
        row("orders per second, paid", lambda one: f"{one.orders_per_s:,.0f}"),
        row("orders per second, known to all four", lambda one: f"{one.agreed_per_s:,.0f}"),
        row("locks in the orders' database, median", lambda one: _ms(one.orders_lock_ms_median)),
        row("locks in the orders' database, 99 % below", lambda one: _ms(one.orders_lock_ms_p99)),
        row("locks in the other databases, median", lambda one: _ms(one.others_lock_ms_median)),
        row("locks for an order, all four together", lambda one: _ms(one.lock_ms_an_order)),
        row("all four agree", lambda one: "yes" if one.do_agree else "NO"),
    ]


def _ms(value: float) -> str:
    return f"{value:,.1f} ms"


def table(figures: Figures) -> Table:
    """Make the table of the two runs side by side."""
    return _table(("plain messages", "transactional"), sections(figures))


def xa_table(on_postgres: OnPostgres) -> Table:
    """Make the table of our method and XA side by side."""
    return _table(("transactional", "XA"), xa_sections(on_postgres))


def _table(names: tuple[str, str], given: Iterator[tuple[str, list[Row]]]) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("", min_width=NAME_WIDTH)
    for name in names:
        made.add_column(name, justify="right", min_width=FIGURE_WIDTH)
    for heading, rows in given:
        made.add_row(f"[bold]{heading}[/]")
        for name, *values in rows:
            made.add_row(f"  {name}", *values)
    return made


def verdict(figures: Figures) -> list[str]:
    """Return the conclusion in sentences."""
    wrong = sum(figures.plain.wrong_effects.values())
    disagree = f"{disagreements(figures.audited.plain):,} orders and messages disagree"
    lines = [f"Plain messages: {disagree}, and {wrong:,} effects downstream are wrong."]
    if figures.is_proven:
        lines.append("Transactional messages: 0 disagree. Nothing lost, nothing doubled.")
    else:
        lines.append("Transactional messages: THE PROMISE IS BROKEN, or it could not be proven:")
        lines += [f"  {reason}" for reason in reasons(figures)]
    return lines


def reasons(figures: Figures) -> Iterator[str]:
    """Yield the reasons why the promise is not proven."""
    run, audit = figures.transactional, figures.audited.transactional
    yield from (f"{one.total:,} times {one.name}: {one.about}" for one in audit.findings)
    for comparison in audit.comparisons:
        if comparison.is_failed:
            yield f"{comparison.compared} could not be compared: {comparison.not_compared}"
    if figures.audited.decided.undecided:
        yield f"{figures.audited.decided.undecided:,} transactions are undecided"
    if run.paid != run.orders:
        yield f"{run.paid:,} of {run.orders:,} orders are paid"
    if not run.is_through:
        yield "not all messages were consumed in time"
    for name, count in run.wrong_effects.items():
        if count:
            yield f"{NAMES[name]}: {count:,} effects are missing or too many"
