"""Tells the brokers every 5 seconds that the pipeline is alive, however long a round takes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import EscrowError
from escrowmq.model.event_log import event_log
from escrowmq.model.log_limit import LogLimit
from escrowmq.pipeline.service.lanes import beside
from escrowmq.pipeline.settle.brokers import THREADS_MAX
from escrowmq.pipeline.settle.round_progress import RoundProgress
from escrowmq.protocol.native.pipeline_headers import HEARTBEAT_S, HeartbeatHeader
from escrowmq.protocol.native.requests import NativeCode

log = event_log(__name__)

ANSWER_S = 3.0
"""Timeout of one heartbeat. A broker that misses it gets the next one."""


def heartbeats(
    brokers: Sequence[str], progress: RoundProgress, *, round_ms_max: int
) -> AbstractContextManager[None]:
    """Send heartbeats inside a ``with`` block, and a last one at its end."""
    limit = LogLimit(log, burst=1, window_s=60.0)

    def send_all(*, is_last: bool) -> None:
        with ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="heartbeat") as threads:
            send = partial(_send, progress=progress, round_ms_max=round_ms_max, is_last=is_last)
            list(threads.map(send, brokers))

    def try_all(*, is_last: bool) -> None:
        try:
            send_all(is_last=is_last)
        except Exception as error:  # noqa: BLE001 -- the next heartbeat must follow; the log tells
            limit.warning("heartbeat_failed", "", {"why": repr(error), "brokers": len(brokers)})

    def run(ending: threading.Event) -> None:
        while not ending.is_set():
            try_all(is_last=False)
            ending.wait(HEARTBEAT_S)
        try_all(is_last=True)

    return beside("heartbeats", run, stop_s_max=3 * ANSWER_S)


def _send(broker: str, *, progress: RoundProgress, round_ms_max: int, is_last: bool) -> None:
    header = HeartbeatHeader(
        pipeline=progress.pipeline,
        round_ended_ago_ms=progress.ended_ago_ms(broker),
        round_running_ms=progress.running_ms(),
        round_ms_max=round_ms_max,
        is_last=is_last,
    )
    try:
        with NativeCalls(broker, connect_s=ANSWER_S, answer_s=ANSWER_S) as calls:
            calls.call(NativeCode.PIPELINE_HEARTBEAT, header)
    except EscrowError as error:
        # An older broker does not know this request and never checks by itself.
        log.debug("heartbeat_not_taken", extra={"broker": broker, "why": str(error)})
