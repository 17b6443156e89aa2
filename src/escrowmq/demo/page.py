"""The demo's report as one HTML file: headline numbers, the runs side by side, and charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from escrowmq.demo.figures import DemoRun, Figures, disagreements, found
from escrowmq.demo.schedule import Victim
from escrowmq.demo.speed import speed_reasons
from escrowmq.demo.text import COMPARED, DISAGREEMENTS, PLACED, reasons, sections, xa_sections
from escrowmq.pipeline.pages.axes import block_sign, charts, figure, legend
from escrowmq.pipeline.pages.bars import Bar, BarGroup, bar_chart
from escrowmq.pipeline.pages.lines import Line, TimeMark, common_scales, line_chart, lines_legend
from escrowmq.pipeline.pages.page import Card, cards, page_end, page_head, page_header
from escrowmq.pipeline.pages.page import figures as figures_table

_LEAD = (
    "A customer pays for an order; logistics, credit points and cart must each hear of it once."
    " The order service and the broker are killed on the way: once with plain messages, once with"
    " transactional ones. Then Spark audits both runs. Everything here was measured in one run on"
    " one machine."
)
_AGES_S = (1, 2, 4, 8, 16, 32)
_RUNS = ("plain messages", "transactional")
_RUN_STYLES = ("second", "first")


def as_html(figures: Figures) -> str:
    """Return the page."""
    return "\n".join([page_head("EscrowMQ demo"), *_body(figures), page_end()])


def _body(figures: Figures) -> Iterator[str]:
    run = figures.plain
    facts = [
        ("orders in each run", f"{run.orders:,}"),
        ("kills in each run", f"{len(run.kills)}"),
        ("seed", f"{figures.seed}"),
    ]
    yield page_header("Paying orders under kills", _LEAD, figures.origin, facts)
    yield cards(_cards(figures))
    yield "<h2>Orders over time</h2>"
    yield (
        '<p class="soft">Both charts have the same axes. A run ends when every message is consumed'
        " and no transaction is undecided.</p>"
    )
    yield charts(_over_time(figures.plain, figures.transactional))
    yield "<h2>What went wrong, and how it was settled</h2>"
    yield charts(_outcomes(figures))
    yield "<h2>Side by side</h2>"
    yield figures_table(_RUNS, sections(figures))
    yield "<h2>Why the speeds differ</h2>"
    yield "".join(f"<p>{escape(reason)}</p>" for reason in speed_reasons(figures))
    if figures.on_postgres is not None:
        yield "<h2>Beside XA</h2>"
        yield f'<p class="soft">{escape(COMPARED)}</p>'
        yield figures_table(("transactional", "XA"), xa_sections(figures.on_postgres))
    yield f"<footer><p>{escape(PLACED.format(seed=figures.seed))}</p></footer>"


def _cards(figures: Figures) -> Iterator[Card]:
    plain, ours = figures.plain, figures.transactional
    wrong = (
        f"{sum(plain.wrong_effects.values()):,} effects downstream are wrong: parcels, points and"
        " carts of orders whose message was lost or came twice."
    )
    about_speed = (
        "Plain and transactional, restarts included. A transactional order waits for the broker's"
        " disk twice, a plain order once. The reasons are below."
    )
    yield Card(
        "Plain messages",
        f"{disagreements(figures.audited.plain):,}",
        "orders and messages disagree",
        [wrong],
        "open",
    )
    if figures.is_proven:
        told, style = ["Nothing lost, nothing doubled: the audit compared everything."], "good"
    else:
        told = ["The promise is broken, or it could not be proven:", *reasons(figures)]
        style = "bad"
    total = disagreements(figures.audited.transactional)
    yield Card("Transactional messages", f"{total:,}", "disagree", told, style)
    yield Card(
        "Speed",
        f"{plain.orders_per_s:,.0f} beside {ours.orders_per_s:,.0f}",
        "orders per second",
        [about_speed],
    )


def _over_time(plain: DemoRun, transactional: DemoRun) -> Iterator[str]:
    drawn = [(_lines(run), _marks(run)) for run in (plain, transactional)]
    scales = common_scales(drawn)
    for run, name, (lines, marks) in zip((plain, transactional), _RUNS, drawn, strict=True):
        about = f"{run.paid:,} orders paid in {run.took_s:,.1f} s, {len(run.kills)} kills"
        keys = lines_legend(lines, low_marks="order service killed", high_marks="broker killed")
        label = f"{name}: orders over time"
        drawing = line_chart(lines, marks, scales, counts="orders", label=label)
        yield figure(name.capitalize(), about, keys, drawing)


def _lines(run: DemoRun) -> list[Line]:
    paid = [(sample.at_s, float(sample.paid)) for sample in run.samples]
    acted = [(sample.at_s, float(sample.acted)) for sample in run.samples]
    return [
        Line("orders paid", "first", paid),
        Line("done by all three services downstream", "second", acted),
    ]


def _marks(run: DemoRun) -> list[TimeMark]:
    return [
        TimeMark(kill.at_s, f"{kill.victim} killed {kill.moment}", kill.victim == Victim.BROKER)
        for kill in run.kills
    ]


def _outcomes(figures: Figures) -> Iterator[str]:
    keys = legend((block_sign(style), name) for style, name in zip(_RUN_STYLES, _RUNS, strict=True))
    title = "Orders and messages that disagree"
    yield figure(title, "by the Spark audit", keys, _disagreements(figures))
    ages_ms = figures.audited.decided.ages_ms
    if ages_ms:
        about = "from the half message to the decision by the ledger"
        yield figure("Transactions that a kill left undecided", about, "", _ages(ages_ms))


def _disagreements(figures: Figures) -> str:
    audits = (figures.audited.plain, figures.audited.transactional)
    groups = []
    for finding, name in DISAGREEMENTS.items():
        counts = [found(report, finding) for report in audits]
        bars = [
            Bar(f"{run}, {name}: {count:,}", [(style, count)])
            for run, style, count in zip(_RUNS, _RUN_STYLES, counts, strict=True)
        ]
        first, _, rest = name.partition(" ")
        groups.append(BarGroup(f"{first}\n{rest}", bars))
    return bar_chart(groups, counts="disagreements", label="orders and messages that disagree")


def _ages(ages_ms: Sequence[int]) -> str:
    groups, low = [], 0
    for high in _AGES_S:
        count = sum(low * 1_000 <= age < high * 1_000 for age in ages_ms)
        groups.append(
            BarGroup(f"{low} to {high}", [Bar(f"{low} to {high} s: {count:,}", [("third", count)])])
        )
        low = high
    count = sum(age >= low * 1_000 for age in ages_ms)
    groups.append(BarGroup(f"> {low}", [Bar(f"longer: {count:,}", [("third", count)])]))
    return bar_chart(
        groups, counts="transactions", label="time until the decision", axis="seconds undecided"
    )
