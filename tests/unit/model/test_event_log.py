"""An event's text and its record's fields hold the same facts."""

from __future__ import annotations

import logging
import logging.handlers
import queue
from typing import TYPE_CHECKING

from escrowmq.model.event_log import FACT_CHARS_MAX, event_log

if TYPE_CHECKING:
    import pytest

log = event_log("escrowmq.tests")


def test_the_text_has_the_facts_and_the_record_has_them_as_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log.warning("broker_away", extra={"address": "a:1", "after_ms": 5, "why": "100 % down\n"})
    (record,) = caplog.records
    assert record.getMessage() == r"broker_away address='a:1' after_ms=5 why='100 % down\n'"
    fields = vars(record)
    assert (fields["event"], fields["address"], fields["after_ms"]) == ("broker_away", "a:1", 5)
    assert (record.name, record.levelname) == ("escrowmq.tests", "WARNING")


def test_an_event_without_facts_is_its_name(caplog: pytest.LogCaptureFixture) -> None:
    log.error("100 %s")
    assert caplog.messages == ["100 %s"]


def test_the_record_names_the_line_that_logged(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("here", extra={"a": 1})
    log.log(logging.ERROR, "here", extra={"a": 1})
    for record in caplog.records:
        assert record.funcName == "test_the_record_names_the_line_that_logged"
        assert record.pathname == __file__


def test_an_error_brings_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    try:
        int("no")
    except ValueError as error:
        log.exception("failed", extra={"work": "int"})
        log.warning("failed", extra={"work": "int"}, exc_info=error)
    for record in caplog.records:
        text = logging.Formatter().format(record)
        assert text.startswith("failed work='int'\nTraceback")


def test_a_fact_cannot_overwrite_what_logging_sets(caplog: pytest.LogCaptureFixture) -> None:
    facts = {"name": "x", "message": "y", "event": "z", "args": (1,)}
    log.warning("odd", extra=facts)
    (record,) = caplog.records
    assert record.getMessage() == "odd name_='x' message_='y' event_='z' args_=(1,)"
    assert (record.name, vars(record)["event"]) == ("escrowmq.tests", "odd")


def test_a_long_fact_is_cut_in_the_text_alone(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("long", extra={"why": "x" * 10_000})
    (record,) = caplog.records
    assert len(record.getMessage()) == len("long why=") + FACT_CHARS_MAX
    assert len(vars(record)["why"]) == 10_000


def test_a_level_that_is_off_costs_no_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "escrowmq.tests"):
        log.warning("quiet", extra={"a": 1})
    assert caplog.records == []


def test_a_record_keeps_text_and_fields_through_a_queue() -> None:
    records: queue.Queue[logging.LogRecord] = queue.Queue()
    handler = logging.handlers.QueueHandler(records)
    log.logger.addHandler(handler)
    try:
        log.warning("broker_away", extra={"address": "a:1"})
    finally:
        log.logger.removeHandler(handler)
    record = records.get_nowait()
    assert record.getMessage() == "broker_away address='a:1'"
    assert (vars(record)["event"], vars(record)["address"]) == ("broker_away", "a:1")


def test_records_of_one_event_share_their_template(caplog: pytest.LogCaptureFixture) -> None:
    for address in ("a:1", "b:2"):
        log.warning("broker_away", extra={"address": address})
    assert len({record.msg for record in caplog.records}) == 1
