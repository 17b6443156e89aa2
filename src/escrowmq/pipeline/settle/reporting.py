"""Reports to the brokers after each round which ledgers the pipeline can reach."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.look_up.ledger_book import LedgerBook
from escrowmq.model.errors import EscrowError
from escrowmq.model.event_log import event_log
from escrowmq.pipeline.settle.brokers import THREADS_MAX
from escrowmq.pipeline.settle.round_progress import RoundProgress
from escrowmq.protocol.native.ledgers import LedgerReportRow, ReportLedgersHeader
from escrowmq.protocol.native.requests import NativeCode

log = event_log(__name__)

ANSWER_S = 3.0
"""Timeout of one report. A broker that misses it gets the next one."""

VALID_MS = 120_000
"""How long a report is valid: four times the interval between reports."""


class LedgerReporter:
    """Sends the reports of one pipeline. An undelivered report does not fail the round."""

    def __init__(self, book: LedgerBook, progress: RoundProgress) -> None:
        self._book = book
        self._progress = progress

    def send(self, brokers: Sequence[str]) -> None:
        """Send the report to all brokers in parallel."""
        rows = self._book.rows()
        with ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="report") as threads:
            sent = [threads.submit(self._send, broker, rows) for broker in brokers]
        for broker, one in zip(brokers, sent, strict=True):
            if (error := one.exception()) is not None:
                log.error("report_failed", extra={"broker": broker}, exc_info=error)

    def _send(self, broker: str, rows: list[LedgerReportRow]) -> None:
        header = ReportLedgersHeader(
            pipeline=self._progress.pipeline,
            valid_for_ms=VALID_MS,
            round_ended_ago_ms=self._progress.ended_ago_ms(broker),
        )
        try:
            with NativeCalls(broker, connect_s=ANSWER_S, answer_s=ANSWER_S) as calls:
                calls.call(NativeCode.REPORT_LEDGERS, header, rows)
        except EscrowError as error:
            # An older broker does not know this request and shows nothing about ledgers.
            log.debug("report_not_taken", extra={"broker": broker, "why": str(error)})
