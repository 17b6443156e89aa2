"""What ``status`` and ``doctor`` say about TLS."""

from __future__ import annotations

import msgspec
import pytest

from escrowmq.cli.admin.status import ReportedLag, largest_lag, tls_of
from escrowmq.cli.doctor.broker import of_answer
from escrowmq.cli.doctor.findings import Severity
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.status_answer import StatusAnswer
from escrowmq.testing import InProcessBroker

DAY_MS = 86_400_000
Asked = tuple[StatusAnswer, ReportedLag]


@pytest.fixture(scope="module")
def asked() -> Asked:
    with InProcessBroker() as broker, NativeCalls(broker.broker_address) as calls:
        return calls.call(NativeCode.STATUS).header, largest_lag(calls)


def with_tls(told: StatusAnswer, days_left: int, error: str = "") -> StatusAnswer:
    return msgspec.structs.replace(
        told,
        tls="required",
        tls_expires_at_ms=told.wall_ms + days_left * DAY_MS,
        tls_error=error,
    )


@pytest.mark.parametrize(
    ("days_left", "error", "level", "text"),
    [
        (31, "", Severity.OK, "expires in 31 d"),
        (29, "", Severity.WARNING, "expires in 29 d"),
        (-1, "", Severity.PROBLEM, "EXPIRED 1 d ago"),
        (31, "no PEM", Severity.WARNING, "NEW FILES FAILED: no PEM"),
    ],
)
def test_the_doctor_judges_the_certificate(
    asked: Asked, days_left: int, error: str, level: Severity, text: str
) -> None:
    told, lag = asked
    found = of_answer(with_tls(told, days_left, error), lag, took_ms=1, apart_ms=0)
    (finding,) = [one for one in found if one.check == "TLS"]
    assert finding.level is level
    assert text in finding.found


def test_tls_that_is_off_is_no_finding_to_act_on(asked: Asked) -> None:
    told, lag = asked
    assert tls_of(told) == "off"
    found = of_answer(told, lag, took_ms=1, apart_ms=0)
    assert [one.level for one in found if one.check == "TLS"] == [Severity.OK]
