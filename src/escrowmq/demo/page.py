"""The report as one page that needs nothing else: the table, and plots of both runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from escrowmq.demo.figures import Figures, Run, found
from escrowmq.demo.schedule import Victim
from escrowmq.demo.text import (
    COMPARED,
    DISAGREEMENTS,
    PLACED,
    sections,
    verdict,
    xa_sections,
)
from escrowmq.pipeline.audit.meanings import MEANINGS
from escrowmq.pipeline.audit.plots import Bar, bars
from escrowmq.pipeline.audit.svg_lines import Line, Mark, lines
from escrowmq.pipeline.audit.web_page import cell, page_end, page_head, table

_AGES_S = (1, 2, 4, 8, 16, 32)


def as_html(figures: Figures) -> str:
    """The whole page."""
    return "\n".join([page_head("EscrowMQ demo"), *_body(figures), page_end()])


def _body(figures: Figures) -> Iterator[str]:
    yield "<h1>EscrowMQ demo</h1>"
    yield (
        '<p class="soft">An order is paid; logistics, credit points and cart must each hear of it'
        " once. The order service and the broker are killed on the way. Everything here was"
        " measured in one run on one machine.</p>"
    )
    about_plain, *about_ours = verdict(figures)
    yield f'<p class="verdict open">{escape(about_plain)}</p>'
    style = "good" if figures.is_proven else "bad"
    for sentence in about_ours:
        yield f'<p class="verdict {style}">{escape(sentence)}</p>'
    yield "<h2>Side by side</h2>"
    for heading, rows in sections(figures):
        yield f"<h3>{escape(heading)}</h3>"
        made = [(cell(name), _number(one), _number(other)) for name, one, other in rows]
        yield table(("", "plain messages", "transactional"), made)
    yield "<h2>Orders and messages that disagree</h2>"
    yield _disagreements(figures)
    for run in (figures.plain, figures.transactional):
        yield f"<h2>{escape(run.name.capitalize())}: orders over time</h2>"
        yield (
            '<p class="soft">Orders paid, and under them those that all three services downstream'
            " are through with. A mark is a kill: of the order service below, of the broker above."
            "</p>"
        )
        yield _over_time(run)
    if figures.audited.decided.ages_ms:
        yield "<h2>How long transactions were undecided that the pipeline settled</h2>"
        yield _ages(figures.audited.decided.ages_ms)
    if figures.on_postgres is not None:
        yield "<h2>Beside XA</h2>"
        for heading, rows in xa_sections(figures.on_postgres):
            yield f"<h3>{escape(heading)}</h3>"
            made = [(cell(name), _number(ours), _number(xa)) for name, ours, xa in rows]
            yield table(("", "transactional", "XA"), made)
        yield f'<p class="soft">{escape(COMPARED)}</p>'
    yield f'<p class="soft">{escape(PLACED.format(seed=figures.seed))}</p>'


def _number(text: str) -> str:
    return f'<td class="number">{escape(text)}</td>'


def _disagreements(figures: Figures) -> str:
    # Short names: six bars stand beside each other.
    audits = {"plain": figures.audited.plain, "trans.": figures.audited.transactional}
    drawn = []
    for finding, name in DISAGREEMENTS.items():
        for run, report in audits.items():
            count = found(report, finding)
            label = f"{run} {MEANINGS[finding].kind}"
            drawn.append(Bar(f"{run}, {name}: {count:,}", [("found", count)], label))
    return bars(drawn)


def _over_time(run: Run) -> str:
    paid = [(sample.at_s, float(sample.paid)) for sample in run.samples]
    acted = [(sample.at_s, float(sample.acted)) for sample in run.samples]
    marks = [
        Mark(kill.at_s, f"{kill.victim} killed {kill.moment}", kill.victim == Victim.BROKER)
        for kill in run.kills
    ]
    drawn = [Line("orders paid", "committed", paid), Line("downstream", "rolled_back", acted)]
    return lines(drawn, marks, unit="s")


def _ages(ages_ms: Sequence[int]) -> str:
    drawn = []
    low = 0
    for high in _AGES_S:
        count = sum(low * 1_000 <= age < high * 1_000 for age in ages_ms)
        drawn.append(Bar(f"{low} to {high} s: {count:,}", [("undecided", count)], f"< {high} s"))
        low = high
    count = sum(age >= low * 1_000 for age in ages_ms)
    return bars([*drawn, Bar(f"longer: {count:,}", [("undecided", count)], "longer")])
