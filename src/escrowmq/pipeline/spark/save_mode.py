"""A note on Spark's error for ``df.write`` without a mode.

Spark's default mode is ErrorIfExists. The JVM refuses that mode for every Python data source before
any of our code runs, and suggests "Append" or "Overwrite". Messages cannot be overwritten, so the
second suggestion leads to the next error. PySpark has no hook for this, so ``save`` is wrapped. The
wrapper only adds a note to this one error.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrameWriter

CONDITION = "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"
NOTE = (
    'escrowmq: write with .mode("append"), as in '
    'df.write.format("escrowmq").mode("append").options(broker=…, topic=…).save(). '
    "Messages are only ever appended."
)


def explain_save_mode() -> None:
    """Make Spark's error name the mode to use. Runs on the driver; repeated calls are harmless."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrameWriter

    save = DataFrameWriter.save
    if hasattr(save, "explains_escrowmq"):
        return

    @wraps(save)
    def save_or_explain(writer: DataFrameWriter, *arguments: object, **options: object) -> None:
        try:
            save(writer, *arguments, **options)  # type: ignore[arg-type]  # passed on as given
        except AnalysisException as error:
            if _is_about_our_mode(error):
                error.add_note(NOTE)
            raise

    save_or_explain.explains_escrowmq = True  # type: ignore[attr-defined]  # our mark
    DataFrameWriter.save = save_or_explain  # type: ignore[assignment,method-assign]


def _is_about_our_mode(error: PySparkException) -> bool:
    told = error.getMessageParameters() or {}
    return error.getCondition() == CONDITION and "escrowmq" in told.get("source", "")
