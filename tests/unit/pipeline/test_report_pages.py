"""The parts of every HTML report: style sheet, aligned tables, scales with round numbers."""

from __future__ import annotations

import re

import pytest

from escrowmq.pipeline.pages.axes import scale_to
from escrowmq.pipeline.pages.bars import Bar, BarGroup, bar_chart
from escrowmq.pipeline.pages.lines import Line, TimeMark, common_scales, line_chart
from escrowmq.pipeline.pages.origin import moment, this_origin
from escrowmq.pipeline.pages.page import (
    LOGO,
    Card,
    Cell,
    TableColumn,
    cards,
    figures,
    page_head,
    style_sheet,
    table,
)
from tests.unit.repository import ROOT

EVIL = '"><script>alert(1)</script>'


def test_the_style_sheet_serves_light_dark_paper_and_phones() -> None:
    style = style_sheet()
    assert style in page_head("Report")
    assert "@media (prefers-color-scheme: dark)" in style
    assert "@media print" in style
    assert "max-width: 44rem" in style
    assert "</style" not in style
    # The page loads no font, image or style sheet from elsewhere.
    assert not re.search(r"url\(|@import|@font-face|https?:", style)


def test_words_are_not_broken_in_tables() -> None:
    """Only ids may break at any character, because they contain no spaces."""
    breaking = re.findall(r"^(\S.*)\{[^}]*overflow-wrap: anywhere", style_sheet(), re.MULTILINE)
    assert [name.strip() for name in breaking] == ["td.id"]


def test_the_logo_of_a_report_is_the_sites() -> None:
    drawn = re.findall(r' d="([^"]+)"', (ROOT / "docs/assets/logo.svg").read_text(encoding="utf-8"))
    assert drawn == re.findall(r' d="([^"]+)"', LOGO)


def test_text_of_others_never_becomes_a_tag() -> None:
    made = [
        table([TableColumn(EVIL)], [[EVIL]]),
        figures([EVIL], [(EVIL, [(EVIL, EVIL)])]),
        cards([Card(EVIL, EVIL, EVIL, [EVIL])]),
        bar_chart(
            [BarGroup(EVIL, [Bar(EVIL, [("first", 1)])])], counts=EVIL, label=EVIL, axis=EVIL
        ),
        page_head(EVIL),
    ]
    for one in made:
        assert "<script" not in one


def test_a_header_is_aligned_as_its_column() -> None:
    made = table(
        [TableColumn("name"), TableColumn("count", "number")], [["a", "1"], ["b", Cell("2", "bad")]]
    )
    assert '<th class="number">count</th>' in made
    assert '<td class="number" data-label="count">1</td>' in made
    assert '<td class="number bad" data-label="count">2</td>' in made


@pytest.mark.parametrize(
    ("value", "end", "step"),
    [(0, 1, 1), (1, 1, 1), (4.2, 5, 1), (7, 8, 2), (23, 25, 5), (2_000, 2_000, 500), (60, 60, 20)],
)
def test_a_scale_has_round_ticks_and_room_for_its_value(
    value: float, end: float, step: float
) -> None:
    scale = scale_to(value)
    assert scale == (end, step)
    assert list(scale.ticks())[-1] == end


def test_scales_have_room_for_every_chart() -> None:
    short = (
        [Line("paid", "first", [(0.0, 0.0), (7.0, 90.0)])],
        [TimeMark(3.0, "killed", is_high=False)],
    )
    long = (
        [Line("paid", "first", [(0.0, 0.0), (17.0, 80.0)])],
        [TimeMark(18.5, "killed", is_high=True)],
    )
    scales = common_scales([short, long])
    assert (scales.time.end, scales.height.end) == (20, 100)
    for lines, marks in (short, long):
        assert ">20</text>" in line_chart(lines, marks, scales, counts="orders", label="run")


def test_long_labels_of_neighbors_take_turns_on_two_lines() -> None:
    def heights(*labels: str) -> list[str]:
        groups = [BarGroup(label, [Bar(label, [("first", 1)])]) for label in labels]
        drawn = bar_chart(groups, counts="", label="")
        return [
            re.findall(rf'y="([\d.]+)" text-anchor="middle">{label}<', drawn)[0] for label in labels
        ]

    assert len(set(heights("lost", "stuck"))) == 1
    long = ["doubled", "phantom", "contradictory", "stuck", "forced", "lost"]
    assert heights(*long)[0] != heights(*long)[1]
    assert heights(*long)[0] == heights(*long)[2]


def test_the_origin_names_this_machine() -> None:
    origin = this_origin()
    assert origin.version
    assert origin.machine.startswith(origin.host)
    assert origin.python in origin.software
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert moment(None) == ""
    assert moment(2**62) == f"{2**62} ms"
