"""Pages that need nothing else: no script, no font, no other file.

What the reports of an audit and of the demo share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root { color-scheme: light dark; --ink: #1c2128; --soft: #5c6570; --paper: #ffffff;
  --edge: #d9dee4; --row: #f5f7f9; --good: #1a7f4b; --bad: #b3261e; --open: #9a6700;
  --committed: #2f6fbd; --rolled: #c98a2b; --undecided: #8a5cc2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #9aa5b1; --paper: #14181d;
  --edge: #333b44; --row: #1c2229; --good: #5cc98d; --bad: #ff8a80; --open: #e3b341;
  --committed: #6ea8ea; --rolled: #e0ab5c; --undecided: #b491e4; } }
body { margin: 2rem auto; max-width: 68rem; padding: 0 1rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.5rem; } h2 { margin: 2.2rem 0 .5rem; font-size: 1.15rem; }
h3 { margin: 1.4rem 0 .3rem; font-size: 1rem; } p { margin: .3rem 0; }
.soft, caption { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.open { color: var(--open); } .verdict { font-size: 1.15rem; font-weight: 600; margin-top: .8rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0;
  border-bottom: 1px solid var(--edge); overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td p { margin: 0; } code { font: .92em ui-monospace, monospace; }
section.found { border-left: 3px solid var(--bad); padding-left: 1rem; margin-top: 1.4rem; }
svg { width: 100%; max-width: 52rem; height: auto; } svg text { font-size: 11px;
  fill: var(--soft); } .grid { stroke: var(--edge); }
.committed { fill: var(--committed); } .rolled_back { fill: var(--rolled); }
.undecided { fill: var(--undecided); } .found { fill: var(--bad); }
.line { fill: none; stroke-width: 2; } .line.committed { stroke: var(--committed); }
.line.rolled_back { stroke: var(--rolled); }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .35em 0 1em; }
.key svg { width: 100%; height: 100%; }
</style>
</head>
<body>
"""


def page_head(title: str) -> str:
    """Everything above what the page says."""
    return _HEAD.replace("{title}", escape(title))


def page_end() -> str:
    """Everything below it."""
    return "</body>\n</html>\n"


def table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(row)}</tr>\n" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def cell(text: str | None) -> str:
    """Make text a cell."""
    return f"<td>{escape(text or '')}</td>"
