"""The demo reports what it measured, and never reports a broken promise as kept."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from rich.console import Console

from escrowmq.demo import page, text
from escrowmq.demo.figures import Figures, ProgressSample
from escrowmq.demo.showing import Bars, Lines, showing
from escrowmq.demo.speed import speed_reasons
from escrowmq.demo.step_times import StepTimes
from escrowmq.pipeline.pages.origin import moment, this_origin
from tests.unit.demo.examples import LOST, audit, figures, on_postgres, run


def printed(made: object) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(made)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def row(shown: str, name: str) -> list[str]:
    line = next(line for line in shown.splitlines() if line.strip().startswith(name))
    return line.strip().removeprefix(name).split()


def test_the_runs_stand_side_by_side() -> None:
    shown = printed(text.table(figures()))
    assert row(shown, "orders paid") == ["200", "200"]
    assert row(shown, "messages") == ["198", "200"]
    assert row(shown, "orders without a message") == ["3", "0"]
    assert row(shown, "orders with several messages") == ["1", "0"]
    assert row(shown, "credit points") == ["3", "0"]
    assert row(shown, "orders per second, restarts included") == ["50", "50"]
    assert row(shown, "orders per second, restarts left out") == ["100", "100"]
    assert row(shown, "of that, starts of the order service") == ["1.5", "s", "1.5", "s"]
    assert row(shown, "message to the broker, held") == ["-", "3.50", "ms"]
    assert row(shown, "INSERT of the ledger's row") == ["-", "0.20", "ms"]
    assert row(shown, "all steps of an order") == ["5.00", "ms", "10.70", "ms"]
    assert row(shown, "broker, at a random moment") == ["1", "1"]
    assert row(shown, "undecided, committed: the row was in the ledger") == ["-", "2"]
    assert row(shown, "undecided, rolled back: fenced in the ledger") == ["-", "3"]
    assert row(shown, "the longest was undecided for") == ["-", "70.0", "s"]


def test_a_kept_promise_is_said_in_a_sentence() -> None:
    assert text.verdict(figures()) == [
        "Plain messages: 4 orders and messages disagree, and 9 effects downstream are wrong.",
        "Transactional messages: 0 disagree. Nothing lost, nothing doubled.",
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (figures(of_transactional=audit((LOST, 1))), "1 times business_row_without_message"),
        # Nothing was found, but the comparison is incomplete, so it proves nothing.
        (figures(of_transactional=audit(failed="it is down")), "ledger could not be compared"),
        (figures(undecided=2), "2 transactions are undecided"),
        (figures(transactional=run("transactional", paid=199)), "199 of 200 orders are paid"),
        (figures(transactional=run("transactional", is_through=False)), "not all messages were"),
        (
            figures(
                transactional=run(
                    "transactional", wrong_effects={"cart": 1, "points": 0, "logistics": 0}
                )
            ),
            "cart: 1 effects",
        ),
    ],
)
def test_whatever_is_missing_from_the_proof_is_named(given: Figures, reason: str) -> None:
    assert not given.is_proven
    said = text.verdict(given)
    assert "THE PROMISE IS BROKEN" in said[1]
    assert said[2].strip().startswith(reason)
    assert len(said) == 3


def test_ours_and_xa_stand_side_by_side() -> None:
    shown = printed(text.xa_table(on_postgres(agreed_s=2.0, do_agree=False)))
    assert row(shown, "orders per second, paid") == ["100", "100"]
    assert row(shown, "orders per second, known to all four") == ["50", "100"]
    assert row(shown, "locks for an order, all four together") == ["6.0", "ms", "6.0", "ms"]
    assert "the same, with logistics 20 ms slower" in shown
    assert row(shown, "all four agree") == ["yes", "NO"]


def test_the_speeds_are_explained_with_the_runs_own_figures() -> None:
    restarts, broker, work = speed_reasons(figures())
    assert restarts.startswith("50 beside 50 orders per second, restarts included: 2.0 s of")
    assert "Without restarts: 100 beside 100." in restarts
    assert "7.5 ms per order instead of 3.0 ms (+4.5 ms)" in broker
    assert "row costs 0.20 ms" in broker
    assert "does less durable work" in work
    # A service that was killed at its last order has no measurements, so the text omits them.
    unmeasured = run("transactional", steps=StepTimes())
    assert len(speed_reasons(figures(transactional=unmeasured))) == 2


def test_runs_that_are_compared_have_the_same_axes() -> None:
    samples = [
        ProgressSample(at_s=0.0, paid=0, acted=0),
        ProgressSample(at_s=23.0, paid=200, acted=190),
    ]
    slow = run("transactional", took_s=23.0, samples=samples)
    made = page.as_html(figures(transactional=slow))
    plain, transactional = re.findall(r'aria-label="[^"]*over time">(.*?)</svg>', made, re.DOTALL)
    ticks = [re.findall(r"<text[^>]*>([\d,]+)</text>", drawn) for drawn in (plain, transactional)]
    assert ticks[0] == ticks[1]
    assert "25" in ticks[0]


def test_numbers_stand_under_their_headers_in_one_table() -> None:
    made = page.as_html(figures())
    assert made.count("<table") == 1
    assert made.count('<th class="number" scope="col">') == 2
    assert made.count('<col class="figure">') == 2


def test_the_page_names_version_date_and_machine() -> None:
    origin = this_origin()
    made = page.as_html(msgspec.structs.replace(figures(), origin=origin))
    assert f"<dt>EscrowMQ</dt><dd>{origin.version}</dd>" in made
    assert moment(origin.written_at_ms) in made
    assert f"{origin.processors} processor" in made
    assert origin.host in made


def test_the_page_has_every_figure_and_needs_no_other_file() -> None:
    made = page.as_html(figures(on_postgres=on_postgres()))
    for _, rows in text.sections(figures()):
        for name, *_ in rows:
            assert name.replace("'", "&#x27;") in made
    assert "XA" in made
    # The charts: disagreements, two runs over time, ages.
    assert made.count('role="img"') == 4
    # The legend of each run names every line and every mark.
    for key in ("orders paid", "done by all three", "order service killed", "broker killed"):
        assert len(re.findall(rf"</svg>{key}[^<]*</li>", made)) == 2
    assert "order service killed after an order&#x27;s COMMIT" in made
    assert "src=" not in made
    assert "<script" not in made


def test_without_a_terminal_a_run_is_a_few_lines() -> None:
    console = Console(file=io.StringIO())
    with showing(console, kills=2) as show:
        assert isinstance(show, Lines)
        show.say("it begins")
        for paid in range(201):
            show.tell(run("plain"), paid, {"logistics": paid, "points": paid // 2, "cart": paid})
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "> it begins",
        "  50 orders paid, 2 of 2 kills, downstream 25 behind",
        "  100 orders paid, 2 of 2 kills, downstream 50 behind",
        "  150 orders paid, 2 of 2 kills, downstream 75 behind",
        "  200 orders paid, 2 of 2 kills, downstream 100 behind",
    ]


def test_on_a_terminal_there_are_bars() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with showing(console, kills=2) as show:
        assert isinstance(show, Bars)
        show.say("it begins")
        show.tell(run("plain"), 120, {"logistics": 80, "points": 90, "cart": 100})
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "plain: orders paid" in shown
    assert "120/200" in shown
    assert "plain: credit points" in shown
