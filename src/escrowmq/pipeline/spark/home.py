"""A home for Spark in which its Python processes start fast.

Spark puts a zip of its own modules first on the path of each Python process that it starts.  There
is no bytecode in it, so each of them compiles anew what it imports, for most of a second, and the
pipeline has a dozen.  In a home that has only links to the programs and the jars there is no such
zip, and they import the installed package, which is the same.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "SPARK_HOME"
LINKED = ("bin", "jars")
_PREFIX = "spark-home-"


def spark_home(cache: Path) -> Path | None:
    """Return the home to use, made in `cache` if it is not there.

    None if somebody has chosen one, which may be another Spark, or if there is no Spark.  Runs on
    the driver's host, before the session starts.
    """
    given = os.environ.get(VARIABLE, "")
    spec = find_spec("pyspark")
    if (given and not Path(given).name.startswith(_PREFIX)) or spec is None or spec.origin is None:
        return None
    installed = Path(spec.origin).parent
    # Named by what it leads to: environments share the cache without a fight.
    name = hashlib.sha256(str(installed).encode()).hexdigest()[:16]
    home = cache.absolute() / f"{_PREFIX}{name}"
    home.mkdir(parents=True, exist_ok=True)
    for part in LINKED:
        with suppress(FileExistsError):
            (home / part).symlink_to(installed / part)
    return home
