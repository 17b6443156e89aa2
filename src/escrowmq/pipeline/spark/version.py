"""The Spark version check: the pipeline needs Spark 4.3 or newer.

The source, the sink and the views also run on older releases and do not call this check.
"""

from __future__ import annotations

import re
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.config import spark_missing

SPARK_MIN = (4, 3)

_VERSION = re.compile(rb"""^__version__\b[^"'\n]*["']((\d+)\.(\d+)[^"'\n]*)["']""", re.MULTILINE)


def require_pipeline_spark() -> None:
    """Refuse to run the pipeline without Spark, or on a Spark that is too old for it.

    Raises:
        RequestRefused: ``spark_missing``, ``spark_unsupported``.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise spark_missing()
    found = _VERSION.search(_version_file(spec))
    if found is None:
        # A custom build without a version is the user's own responsibility.
        return
    if (int(found[2]), int(found[3])) < SPARK_MIN:
        raise RequestRefused(
            "spark_unsupported",
            "settling, archive, audit and lake need Spark 4.3; install it into a virtual"
            ' environment of its own: pip install "escrowmq[spark]"; source, sink and views run'
            " on 4.0 and newer",
            found=found[1].decode(),
        )


def _version_file(spec: ModuleSpec) -> bytes:
    """The text of ``pyspark/version.py``. Importing the package takes a second and 20 MB."""
    read = getattr(spec.loader, "get_data", None)
    if read is None:
        return b""
    try:
        # This also works for a path inside a zip file.
        return bytes(read(str(Path(str(spec.origin)).with_name("version.py"))))
    except OSError:
        return b""
