"""A sink whose home broker was restored neither repeats a batch nor continues after a gap."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.model.sink_attempt import SinkAttempt, SinkRun
from escrowmq.pipeline.sink import deciding as sink_deciding
from escrowmq.pipeline.sink.calls import SinkCalls
from escrowmq.pipeline.sink.written import SinkBatch
from escrowmq.testing import InProcessBroker
from tests.unit.pipeline.several import DIGITS, TIMEOUT_MS, abort, bodies, keyed, several, write

QUERY = "0b9a6a52-5f6f-4b0e-8f0c-2f0c5c0d9d11"
RUN = SinkRun(app_id="app", query_id=QUERY, run="0a0b0c0d", opened_at=1)


def test_a_home_that_was_restored_does_not_repeat_a_batch_that_others_have_committed(
    tmp_path: Path,
) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    with InProcessBroker(name="b") as b:

        def decide(number: int, *keys: str) -> str:
            with InProcessBroker(name="a", data=data) as a:
                run, to = RUN, several([a, b])
                attempt = SinkAttempt(run=run, batch=number, partition=0, attempt=uuid.uuid4().hex)
                written = write(to, attempt, iter([keyed(*keys)]))
                with SinkCalls(to.home.address, TIMEOUT_MS) as home:
                    try:
                        return sink_deciding.decide(
                            home, SinkBatch(run, number), [written], TIMEOUT_MS, to
                        )
                    except RequestRefused:
                        abort(to, written)
                        raise

        assert decide(5, *DIGITS) == "decided"
        shutil.copytree(data, backup)
        assert decide(6, "x", *DIGITS) == "decided"
        assert decide(6, "x", *DIGITS) == "already_done"
        before = bodies(b)
        assert before
        shutil.rmtree(data)
        shutil.copytree(backup, data)
        with pytest.raises(RequestRefused, match="batch_committed_elsewhere") as refused:
            decide(6, "x", *DIGITS)
        assert (refused.value.fields["home"], refused.value.fields["broker"]) == ("a", "b")
        # The home also refuses a batch that would leave a gap.
        with pytest.raises(RequestRefused, match=r"batches_missing.*last_decided=5"):
            decide(9, "y", *DIGITS)
        assert bodies(b) == before
