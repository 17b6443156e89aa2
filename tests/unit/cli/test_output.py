"""How values are printed for people and for programs."""

from __future__ import annotations

import json

import pytest

from escrowmq.cli.options import Output
from escrowmq.cli.output import human_bytes, note, print_item, print_list
from escrowmq.cli.run.process_events import process_event
from escrowmq.cli.shapes.tool_shapes import BenchShape, LedgerSqlShape


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.0 KiB"),
        (1_536, "1.5 KiB"),
        (1_048_575, "1.0 MiB"),
        (5 * 1_024**3, "5.0 GiB"),
        (1_024**5, "1.0 PiB"),
        (-2_048, "-2.0 KiB"),
    ],
)
def test_sizes_have_the_largest_unit(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_json_is_ascii_and_csv_has_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    item = LedgerSqlShape(dialect="\x9b", sql="a\nb")
    print_item(item, Output.JSON, str)
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"dialect": "\x9b", "sql": "a\nb"}
    print_list(BenchShape, [BenchShape(name="one")], Output.CSV, str)
    assert capsys.readouterr().out == "name\none\n"
    print_list(BenchShape, [], Output.JSON, str)
    assert capsys.readouterr().out == "[]\n"


def test_a_note_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    note("only 3", Output.JSON)
    note("only 3", Output.TABLE)
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", '{"note": "only 3"}\nonly 3\n')


def test_the_facts_of_an_event_are_taken_apart() -> None:
    event = process_event("pipeline", "starved, waited=5s; niceness=5 for 3600 s")
    assert event.facts == {"waited": "5s", "niceness": 5}
