"""Bodies as typed columns, for formats that Spark itself has no function for.

JSON needs nothing of ours: ``from_json(col("body").cast("string"), schema)``. Spark's own
``from_avro`` needs a JAR that ``pip install pyspark`` does not bring. The ``from_avro`` here does
not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.options import bad_option
from escrowmq.pipeline.source.avro_values import Decoder, whole_value

if TYPE_CHECKING:
    from pyspark.sql import Column

PERMISSIVE = "PERMISSIVE"
FAILFAST = "FAILFAST"


def from_avro(column: Column | str, schema: str, mode: str = PERMISSIVE) -> Column:
    """Decode Avro values of this schema, given as JSON, into a column of the schema's type.

    For bytes that are not a value of the schema, ``PERMISSIVE`` gives NULL and ``FAILFAST`` fails
    the task. Each body is one value in Avro's binary form, without the header of Avro files.

    Raises:
        RequestRefused: ``bad_option``, for a bad schema or mode.
    """
    from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

    from escrowmq.pipeline.source.avro_types import read_schema

    # Spark's own function of this name takes a dict of options here.
    if str(mode).upper() not in (PERMISSIVE, FAILFAST):
        raise bad_option("mode", f"{PERMISSIVE} or {FAILFAST}, as a string", str(mode))
    read = read_schema(schema)
    decode = _Decoding(read.decode, is_permissive=mode.upper() == PERMISSIVE)
    return F.udf(decode, read.spark, useArrow=False)(column)


class _Decoding:
    """Decodes one body, in a task."""

    __name__ = "from_avro"

    def __init__(self, decode: Decoder, *, is_permissive: bool) -> None:
        self._decode = decode
        self._is_permissive = is_permissive

    def __call__(self, body: bytes | bytearray | str | None) -> Any:  # noqa: ANN401 -- as the schema says
        if body is None:
            return None
        if isinstance(body, str):
            raise RequestRefused("bad_column", "from_avro takes a binary column", type="string")
        try:
            return whole_value(self._decode, bytes(body))
        except ValueError:
            if self._is_permissive:
                return None
            raise
