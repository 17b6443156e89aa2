"""The sink with a fault that the option ``fault`` names; Spark's processes can import it, too.

No part of the sink is replaced: a fault happens before, between or after its steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, WriterCommitMessage

from escrowmq.pipeline.sink import batch as sink
from escrowmq.pipeline.sink import deciding as sink_deciding
from escrowmq.pipeline.sink import stream as stream_sink
from escrowmq.pipeline.sink.calls import SinkCalls
from tests.spark.sessions import kill_session

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "faulty_sink"
_OURS = ("fault", "victims", "once", "until", "rowsmax", "clockbacks")
#: A limit for a task that hangs.
HANGS_S_MAX = 120.0


class Faults:
    """The faults to cause, and when.

    ``fault`` is a step and a deed, as in ``commit.after:raise``, or several of them with commas.
    The steps are ``open``, ``write.rows`` (after the first rows were held), ``write.after``,
    ``commit.before``, ``check.after`` (of the parts on other brokers), ``decide.after``,
    ``forward.one`` (when the decision has reached one of them), ``commit.after`` and
    ``abort.before``. The deeds are ``raise``, ``hang`` until a file ``until`` exists, and ``kill``,
    which kills the sessions in ``victims``. ``once`` is a file that the fault creates, and that
    prevents a second fault. ``abort:skip`` leaves out an abort, as if the driver were dead.

    ``clockBackS`` sets the driver's clock back by this many seconds while its writer is made.
    """

    def __init__(self, options: dict[str, str]) -> None:
        pairs = [one.partition(":") for one in options.get("fault", ":").split(",")]
        self._deeds = {step: deed for step, _, deed in pairs}
        self._victims = [int(one) for one in options.get("victims", "").split(",") if one]
        self._once = options.get("once", "")
        self._until = options.get("until", "")
        self.rows_max = int(options.get("rowsmax", "10"))
        self._clock_back_s = int(options.get("clockbacks", "0"))

    def at(self, step: str) -> None:
        deed = self._deeds.get(step)
        if deed is None:
            return
        if self._once:
            try:
                Path(self._once).touch(exist_ok=False)
            except FileExistsError:
                return
        if deed == "hang":
            _wait_for(Path(self._until))
            return
        if deed == "raise":
            raise RuntimeError(f"planted at {step}")
        for victim in self._victims:
            kill_session(victim)
        # Tasks of a dead driver may continue.
        raise RuntimeError(f"killed at {step}")

    @contextmanager
    def on_its_clock(self) -> Iterator[None]:
        """Set the driver's clock back in the block."""
        now_s = time.time
        time.time = lambda: now_s() - self._clock_back_s
        try:
            yield
        finally:
            time.time = now_s

    @property
    def has_abort(self) -> bool:
        return self._deeds.get("abort") != "skip"

    def between(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the same rows, with the fault after the first of them must have been held."""
        for number, batch in enumerate(batches):
            # Each batch is several requests. When Spark asks for this batch, all but the last are
            # held.
            if number == 1:
                self.at("write.rows")
            yield batch
        self.at("write.rows")

    @contextmanager
    def within_commit(self) -> Iterator[None]:
        """Cause faults between the steps of a commit, which run unchanged."""
        steps = check, decide, forward_to = (
            sink_deciding.check,
            SinkCalls.decide,
            sink_deciding.forward_to,
        )
        turns = count()

        def checked(*given: Any) -> Any:  # noqa: ANN401 - passed on
            found = check(*given)
            self.at("check.after")
            return found

        def decided(*given: Any) -> str:  # noqa: ANN401
            outcome = decide(*given)
            self.at("decide.after")
            return outcome

        def forwarded(*given: Any) -> None:  # noqa: ANN401
            if next(turns):
                self.at("forward.one")
            forward_to(*given)

        _set_steps(checked, decided, forwarded)
        try:
            yield
        finally:
            _set_steps(*steps)


def _set_steps(check: Any, decide: Any, forward_to: Any) -> None:  # noqa: ANN401
    sink_deciding.check = check
    SinkCalls.decide = decide  # type: ignore[method-assign]  # it calls the original
    sink_deciding.forward_to = forward_to


class FaultyPlain(sink.PlainWriter):
    def __init__(self, options: sink.SinkOptions, faults: Faults) -> None:
        super().__init__(options)
        self._faults = faults
        self.rows_max = faults.rows_max
        faults.at("open")

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        message = super().write(self._faults.between(iterator))
        self._faults.at("write.after")
        return message

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._faults.at("commit.before")
        with self._faults.within_commit():
            super().commit(messages)
        self._faults.at("commit.after")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._faults.at("abort.before")
        if self._faults.has_abort:
            super().abort(messages)


class FaultyStream(stream_sink.StreamWriter):
    def __init__(self, options: sink.SinkOptions, schema: StructType, faults: Faults) -> None:
        super().__init__(options, schema)
        self._faults = faults
        self.rows_max = faults.rows_max
        faults.at("open")

    def hold(self, batches: Iterator[Any]) -> WriterCommitMessage:
        message = super().hold(self._faults.between(batches))
        self._faults.at("write.after")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._faults.at("commit.before")
        with self._faults.within_commit():
            super().commit(messages, batchId)
        self._faults.at("commit.after")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._faults.at("abort.before")
        if self._faults.has_abort:
            super().abort(messages, batchId)


class FaultySink(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def _chosen(self) -> tuple[dict[str, str], Faults]:
        given = {name.lower(): value for name, value in self.options.items()}
        return {name: value for name, value in given.items() if name not in _OURS}, Faults(given)

    def writer(self, schema: StructType, overwrite: bool) -> FaultyPlain:  # noqa: FBT001
        given, faults = self._chosen()
        options = sink.read_options(given, is_stream=False)
        sink.check(schema, options, overwrite=overwrite)
        with faults.on_its_clock():
            return FaultyPlain(options, faults)

    def streamWriter(self, schema: StructType, overwrite: bool) -> FaultyStream:  # noqa: FBT001, N802
        given, faults = self._chosen()
        options = sink.read_options(given, is_stream=True)
        sink.check(schema, options, overwrite=overwrite)
        with faults.on_its_clock():
            return FaultyStream(options, schema, faults)


def _wait_for(file: Path) -> None:
    until = time.monotonic() + HANGS_S_MAX
    nobody = threading.Event()
    while not file.exists() and time.monotonic() < until:
        nobody.wait(0.02)
