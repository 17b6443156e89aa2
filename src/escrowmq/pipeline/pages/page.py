"""The frame of every HTML report: head, facts about its origin, cards, tables, end.

A report is one file: it loads no script, font, image or style sheet. Text from clients and
databases is escaped here; a caller passes HTML only where a parameter's name says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import NamedTuple

from escrowmq.pipeline.pages.origin import ReportOrigin, moment

#: An envelope whose flap is a check mark: the message goes out with the commit.
#: docs/assets/logo.svg is the same drawing.
LOGO = (
    '<svg viewBox="0 0 32 32" aria-hidden="true" fill="none" stroke="currentColor"'
    ' stroke-width="2.8" stroke-linecap="round" stroke-linejoin="round">'
    '<path d="M20 7.5H6a3 3 0 0 0-3 3v14a3 3 0 0 0 3 3h18a3 3 0 0 0 3-3V17"/>'
    '<path d="m9 14.5 6 6L29 5"/></svg>'
)
_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
"""


@lru_cache
def style_sheet() -> str:
    """The style sheet of all reports."""
    return files(__package__).joinpath("report.css").read_text(encoding="utf-8")


def page_head(title: str) -> str:
    """Everything above the page's content."""
    return _HEAD.replace("{title}", escape(title)).replace("{style}", style_sheet())


def page_end() -> str:
    """Everything below the page's content."""
    return "</body>\n</html>\n"


def page_header(
    title: str, lead: str, origin: ReportOrigin | None, facts: Iterable[tuple[str, str]] = ()
) -> str:
    """The title, one paragraph about the report, and its version, date and machine."""
    shown = [*facts, *(origin_facts(origin) if origin is not None else ())]
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown
    )
    return (
        f'<header><p class="brand">{LOGO}EscrowMQ</p><h1>{escape(title)}</h1>'
        f'<p class="lead">{escape(lead)}</p><dl class="facts">{items}</dl></header>'
    )


def origin_facts(origin: ReportOrigin) -> Iterator[tuple[str, str]]:
    """The origin of a report, as name-value pairs."""
    yield "written", moment(origin.written_at_ms)
    yield "EscrowMQ", origin.version
    yield "machine", origin.machine
    yield "software", origin.software


class Card(NamedTuple):
    """A headline number with the sentences that explain it."""

    title: str
    headline: str
    #: Shown smaller after the headline: its unit or subject.
    unit: str
    sentences: Sequence[str]
    #: ``good``, ``bad``, ``open`` or empty.
    style: str = ""


def cards(given: Iterable[Card]) -> str:
    """Headline numbers, side by side."""
    return f'<div class="cards">{"".join(map(_card, given))}</div>'


def _card(card: Card) -> str:
    unit = f" <small>{escape(card.unit)}</small>" if card.unit else ""
    told = "".join(f"<p>{escape(sentence)}</p>" for sentence in card.sentences)
    return (
        f'<section class="card {card.style}"><h2>{escape(card.title)}</h2>'
        f'<p class="headline">{escape(card.headline)}{unit}</p>{told}</section>'
    )


class TableColumn(NamedTuple):
    """A column of a table: its header and the style of its header and cells."""

    name: str
    #: ``number``, ``short``, ``long``, ``id`` or empty.
    style: str = ""


class Cell(NamedTuple):
    """A cell with its own HTML or style. Plain strings are also cells."""

    html: str
    style: str = ""


def table(columns: Sequence[TableColumn], rows: Iterable[Iterable[str | Cell]]) -> str:
    """A table of rows; on a narrow screen each row becomes a block of named values."""
    head = "".join(f'<th class="{one.style}">{escape(one.name)}</th>' for one in columns)
    body = "".join(
        "<tr>"
        + "".join(_cell(column, value) for column, value in zip(columns, row, strict=True))
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="wide"><table class="rows"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(column: TableColumn, value: str | Cell) -> str:
    given = value if isinstance(value, Cell) else Cell(escape(value))
    style = f"{column.style} {given.style}".strip()
    return f'<td class="{style}" data-label="{escape(column.name)}">{given.html}</td>'


FigureRow = tuple[str, ...]


def figures(columns: Sequence[str], groups: Iterable[tuple[str, Iterable[FigureRow]]]) -> str:
    """Named figures in groups, in one table so that all groups share their columns.

    Every row has a name and one figure for each column.
    """
    widths = '<col><col class="figure">' + '<col class="figure">' * (len(columns) - 1)
    head = "".join(f'<th class="number" scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(_group(heading, rows, len(columns)) for heading, rows in groups)
    return (
        f'<div class="wide"><table class="figures"><colgroup>{widths}</colgroup>'
        f"<thead><tr><td></td>{head}</tr></thead>{body}</table></div>"
    )


def _group(heading: str, rows: Iterable[FigureRow], figures_count: int) -> str:
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f'<td class="number">{escape(value)}</td>' for value in values)
        + "</tr>\n"
        for name, *values in rows
    )
    columns = figures_count + 1
    return (
        f'<tbody><tr><th scope="rowgroup" colspan="{columns}">{escape(heading)}</th></tr>\n'
        f"{body}</tbody>"
    )
