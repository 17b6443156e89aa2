"""The report of an audit as an HTML page, as JSON and as terminal text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from escrowmq.cli.lake import audit_text
from escrowmq.cli.options import Output
from escrowmq.pipeline.audit.findings import ComparedEvidence, FindingName
from escrowmq.pipeline.audit.html import as_html
from escrowmq.pipeline.audit.meanings import MEANINGS
from escrowmq.pipeline.audit.plots import BARS_MAX, ages_plot, along_plots, kinds_plot
from escrowmq.pipeline.audit.report import (
    AuditReport,
    BrokerReport,
    Case,
    ComparisonReport,
    FoundReport,
    as_json,
    found_report,
)
from escrowmq.pipeline.pages.bars import bar_chart
from tests.unit.repository import ROOT

NOW_MS = 1_793_491_200_000
EVIL = "<script>alert(1)</script>\x1b[2J"

BROKER = BrokerReport(
    name="broker-a",
    address="127.0.0.1:10911",
    now_ms=NOW_MS,
    log_start=0,
    log_end=4_096,
    half_start=0,
    half_end=20,
    undecided=2,
    parked=1,
)
COMPARED = [
    ComparisonReport(
        compared=ComparedEvidence.RECORDS, counts={"half_messages": 20}, took_ms=1_200
    ),
    ComparisonReport(compared=ComparedEvidence.LAKE, not_compared="no lake was given"),
    ComparisonReport(
        compared=ComparedEvidence.LEDGER,
        which="shop",
        not_compared="ledger_unreachable",
        is_failed=True,
    ),
]


def report(*findings: FoundReport, comparisons: list[ComparisonReport] = COMPARED) -> AuditReport:
    along = [
        ("broker-a", first * 10, state, 5)
        for first in range(200)
        for state in ("committed", "rolled_back", "undecided", "decisions")
    ]
    return AuditReport(
        started_at_ms=NOW_MS,
        took_ms=2_500,
        brokers=[BROKER],
        comparisons=comparisons,
        findings=list(findings),
        along=along,
        open_ages_ms=[90_000_000, 30_000],
    )


def evil() -> FoundReport:
    case = Case(
        broker="broker-a",
        half_offset=7,
        transaction_id=EVIL,
        producer_group=EVIL,
        at_ms=NOW_MS,
        by=EVIL,
        detail=f"the ledger {EVIL}",
    )
    return found_report(FindingName.LEDGER_CONTRADICTS, 60, [case] * 50)


class Page(HTMLParser):
    """Parser that collects a page's tags, links and texts, and checks that its tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [name for name, _ in attrs if name in ("src", "href", "onload")]
        if tag not in ("meta", "rect", "line", "path", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_names_of_clients_are_text_on_the_page_and_never_tags() -> None:
    which = ComparisonReport(compared=ComparedEvidence.LEDGER, which=EVIL, notes=[EVIL])
    page = Page(as_html(report(evil(), comparisons=[which])))
    assert "script" not in page.tags
    assert page.texts.count(EVIL) >= 3 * 50


def test_the_page_needs_no_other_file_and_every_tag_is_closed() -> None:
    text = as_html(report(evil()))
    page = Page(text)
    assert (page.links, page.open) == ([], [])
    for place in ("http://", "https://", "url(", "@import"):
        assert place not in text


def test_a_broker_with_an_evil_name_has_its_plot() -> None:
    (plot,) = along_plots([(EVIL, 0, "committed", 3)]).values()
    assert "<script>" not in plot


@pytest.mark.parametrize(
    "plot",
    [
        bar_chart([], counts="findings", label="nothing"),
        ages_plot([0, 60_000, 2**62]),
        ages_plot([]),
        kinds_plot({"lost": 0, "doubled": 12_345_678}),
        *along_plots([("b", number, "committed", number) for number in range(1_000)]).values(),
    ],
)
def test_a_plot_is_sound_whatever_it_shows(plot: str) -> None:
    drawn = ET.fromstring(plot)
    shapes = list(drawn.iter("rect"))
    assert all(float(one.get("height", "-1")) >= 0 for one in shapes)
    assert all(float(one.get("y", "-1")) >= 0 for one in shapes)
    assert len(list(drawn.iter("g"))) <= BARS_MAX


def test_a_plot_leaves_nothing_out() -> None:
    along = [("b", number, "committed", 1) for number in range(1_000)]
    (plot,) = along_plots(along).values()
    titles = [one.text or "" for one in ET.fromstring(plot).iter("title")]
    assert sum(int(one.partition(": ")[2].split()[0]) for one in titles) == 1_000


def test_the_page_says_what_was_found_and_what_to_do() -> None:
    text = as_html(report(evil()))
    assert "Violated: 60 contradictory." in text
    assert "1 of the comparisons could not be made" in text
    assert MEANINGS[FindingName.LEDGER_CONTRADICTS].remedy in text
    assert "and 10 more" in text


@pytest.mark.parametrize("finding", FindingName)
def test_each_advice_ends_as_a_sentence(finding: FindingName) -> None:
    text = as_html(report(found_report(finding, 1, [])))
    (remedy,) = re.findall(r"<b>What to do:</b> (.*?)</p>", text)
    assert remedy.endswith((".", "?"))
    assert not remedy.endswith(("..", "?."))


def test_a_page_of_nothing_found_says_whether_that_is_a_proof() -> None:
    proof = "Nothing was found: what was compared agrees."
    assert proof in as_html(report(comparisons=COMPARED[:2]))
    assert proof not in as_html(report())


def test_programs_get_it_all_as_json() -> None:
    read = json.loads(as_json(report(evil())))
    assert read["is_clean"] is False
    assert read["has_failed"] is True
    assert read["totals"]["contradictory"] == 60
    assert read["findings"][0]["cases"][0]["producer_group"] == EVIL


def test_the_terminal_gets_all_but_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    audit_text.show(report(evil()), Output.TABLE)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "ledger_contradicts: 3 of 60" in out
    assert f"what to do: {MEANINGS[FindingName.LEDGER_CONTRADICTS].remedy}" in out
    assert [line.split()[:3] for line in out.splitlines() if line.startswith("ledger ")] == [
        ["ledger", "shop", "FAILED"]
    ]
    assert out.splitlines()[-1] == (
        "violated: 60 contradictory; 1 of the comparisons could not be made, so this is"
        " not a full proof"
    )


def test_csv_has_comparisons_and_cases(capsys: pytest.CaptureFixture[str]) -> None:
    audit_text.show(report(evil()), Output.CSV)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "what,name,which,result,count,detail",
        "comparison,records,,compared,,half messages 20",
        "comparison,lake,,not asked for,,no lake was given",
        "comparison,ledger,shop,FAILED,,ledger_unreachable",
    ]
    assert len(lines) == 4 + 50


def test_every_finding_has_a_meaning() -> None:
    assert set(MEANINGS) == set(FindingName)


def test_the_page_about_the_audit_has_every_finding_in_the_reports_words() -> None:
    page = (ROOT / "docs/operate/audit.md").read_text(encoding="utf-8")
    for name, told in MEANINGS.items():
        row = (f"`{name}`", told.kind, told.compared, told.about, told.remedy)
        assert f"| {' | '.join(row)} |" in page
