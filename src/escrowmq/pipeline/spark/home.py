"""A ``SPARK_HOME`` in which Spark's Python processes start fast.

Spark puts a zip of its own modules first on the path of each Python process that it starts. The zip
holds no bytecode, so each process compiles its imports again, which takes most of a second, and the
pipeline has a dozen processes. A home with only links to the programs and the jars has no such zip.
The processes then import the installed package, which is the same code.
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


def folder_of(package: str) -> Path | None:
    """The folder of an installed package; None if it is not installed. Does not import it."""
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def spark_home(cache: Path) -> Path | None:
    """Return the home to use, and create it in `cache` if it is missing.

    Returns None if the user has set ``SPARK_HOME``, which may be another Spark, or if Spark is not
    installed. Runs on the driver's host, before the session starts.
    """
    given = os.environ.get(VARIABLE, "")
    installed = folder_of("pyspark")
    if (given and not Path(given).name.startswith(_PREFIX)) or installed is None:
        return None
    # The name is a hash of the target, so that several environments can share the cache.
    name = hashlib.sha256(str(installed).encode()).hexdigest()[:16]
    home = cache.absolute() / f"{_PREFIX}{name}"
    home.mkdir(parents=True, exist_ok=True)
    for part in LINKED:
        with suppress(FileExistsError):
            (home / part).symlink_to(installed / part)
    return home
