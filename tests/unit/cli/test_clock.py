"""``escrowmq clock``, and the messages of other commands about a wrong clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from escrowmq.cli.admin.status import ReportedLag, gap_of
from escrowmq.cli.doctor import broker as doctor_broker
from escrowmq.cli.doctor.findings import Severity
from escrowmq.cli.main import app_for, main
from escrowmq.testing import InProcessBroker
from tests.unit.cli.answers import answered

Run = Callable[..., str]
DAY = 86_400


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as running:
        running.clock.synchronized = False
        yield running


@pytest.fixture
def run(broker: InProcessBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--broker", broker.broker_address])
        told = capsys.readouterr()
        assert left.value.code == code, told.err
        return told.out if code == 0 else told.err

    return run


def jump(broker: InProcessBroker, days: int) -> None:
    """Move the machine's clock, and let the broker notice it before this returns."""
    broker.clock.jump(seconds=days * DAY)
    broker.advance()


def test_a_trusted_clock_is_shown(broker: InProcessBroker, run: Run) -> None:
    assert "small: 0 ms" in run("clock", "show")
    told = json.loads(run("clock", "show", "-o", "json"))
    assert told["clock_gap"] == "none"
    assert told["now_ms"] == told["wall_ms"] == broker.clock.now_ms()
    assert "clock_not_doubted" in run("clock", "confirm", "--yes", code=2)


def test_a_clock_that_is_ahead_is_shown_and_confirmed(broker: InProcessBroker, run: Run) -> None:
    jump(broker, 4)
    shown = run("clock", "show")
    assert "wall time is 4 d AHEAD and not confirmed" in shown
    assert "waits: the wall clock is ahead" in shown
    assert "4 d AHEAD" in run("status")
    assert "would confirm" in run("clock", "confirm", "--dry-run")
    assert json.loads(run("clock", "show", "-o", "json"))["is_clock_doubtful"]
    done = run("clock", "confirm", "--yes")
    assert "nothing is deleted by age for 1 h" in done
    told = json.loads(run("clock", "show", "-o", "json"))
    assert (told["clock_gap"], told["now_ms"]) == ("none", broker.clock.now_ms())
    assert "moved less than an hour ago, for 1 h more" in run("clock", "show")


def test_a_clock_that_is_behind_is_shown_and_confirmed(broker: InProcessBroker, run: Run) -> None:
    jump(broker, -1)
    assert "wall time is 1 d BEHIND: store time never goes back" in run("clock", "show")
    assert "store time stays 1 d ahead" in run("clock", "confirm", "--yes")
    told = json.loads(run("clock", "show", "-o", "json"))
    assert (told["clock_gap"], told["is_clock_doubtful"]) == ("behind", False)


def test_a_person_is_asked_whether_it_is_really_that_late(broker: InProcessBroker) -> None:
    jump(broker, 4)
    before_ms = broker.clock.now_ms() - 4 * DAY * 1_000
    words = ["clock", "confirm", "--broker", broker.broker_address]
    result = CliRunner().invoke(app_for(words, {}), words, input="n\n")
    assert result.exit_code == 1
    assert "now, in UTC?" in result.output
    assert broker._running.broker.clock.now_ms() == before_ms


def test_a_broker_of_an_older_release_says_nothing_about_its_clock() -> None:
    assert gap_of(answered(clock_gap="")) == "unknown: the broker runs an older release"


@pytest.mark.parametrize(
    ("told", "level"),
    [
        ({"clock_gap": "none"}, Severity.OK),
        ({"clock_gap": "ahead", "is_clock_doubtful": True}, Severity.PROBLEM),
        ({"clock_gap": "behind", "is_clock_doubtful": True}, Severity.PROBLEM),
        # An operator has confirmed the gap.
        ({"clock_gap": "behind"}, Severity.OK),
        ({"clock_gap": "none", "deletion_waits": "it moved"}, Severity.INFORMATION),
    ],
)
def test_the_doctor_looks_at_store_time(told: dict[str, object], level: Severity) -> None:
    nobody = ReportedLag(messages=0, group="", topic="")
    found = doctor_broker.of_answer(answered(**told), nobody, took_ms=1, apart_ms=0)
    assert {one.check: one.level for one in found}["store time"] is level
