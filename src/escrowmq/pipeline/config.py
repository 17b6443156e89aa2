"""What an operator may set about the pipeline.  Light: the command line imports it at its start."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from escrowmq.model.bounds import check_bounds
from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.priority import LEFT_OVER

OFF = -1
DAY_MS = 24 * 3_600_000

_LOCAL = re.compile(r"local(\[.*\])?|local-cluster\[.*\]")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:,/\[\]]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """Section ``[pipeline]``."""

    #: Where Spark runs: `local[*]` is beside the pipeline, on this machine; otherwise a cluster,
    #: such as `spark://host:7077`.
    master: str = "local[*]"
    #: The brokers to look after, `host:port`, with commas between several; `escrowmq up` puts its
    #: own in their place.
    brokers: str = "127.0.0.1:10911"
    #: At most so long after something is due it is looked at; what is left over, as with no
    #: producer online, is tried again after so long.
    settle_interval_ms: int = 5_000
    #: A round that takes longer is given up, and the next one tries again.
    round_ms_max: int = 600_000
    #: Back-checks for one producer group in one round.
    check_budget_per_group: int = 1_000
    #: Whether topics and transactions go to the lake.
    archive: bool = True
    #: What is new goes there so often, at most.
    archive_interval_ms: int = 10_000
    #: Days that rows stay in the lake; 0 means for ever.
    lake_retention_days: int = 0
    #: So often small files of the lake become few, and what is too old goes.
    lake_upkeep_interval_ms: int = 3_600_000
    #: Where the lake and the streams' checkpoints are, a path or a URI.  Empty means in the data
    #: directory; with a cluster both are needed, in a place that all of its machines reach.
    lake_uri: str = ""
    checkpoint_uri: str = ""
    #: Where what helps Spark to start is kept.  Empty means in the data directory.
    cache_dir: str = ""
    #: The heap of the driver's Java, and of each executor's in a cluster.
    driver_memory_mb: int = 1_024
    executor_memory_mb: int = 1_024
    #: Processors of each executor in a cluster; 0 leaves it to the cluster.
    executor_cores: int = 0
    #: Parts of a shuffle.
    shuffle_partitions: int = 4
    #: Further settings of Spark, `name=value` with blanks between them; they win over all others.
    spark_options: str = ""
    #: How far the pipeline steps back on a machine that it shares with the broker: 0 not at all, 19
    #: a lot, 20 to what others leave.  In a cluster it is of no account.
    niceness: int = LEFT_OVER
    #: Where `/status` and `/metrics` are; port 0 means any, -1 means off.
    http_host: str = "127.0.0.1"
    http_port: int = OFF

    def __post_init__(self) -> None:
        check_bounds("pipeline", self, _BOUNDS)
        addresses_of(self.brokers)
        spark_options_of(self.spark_options)
        if is_local(self.master):
            return
        for name in ("lake_uri", "checkpoint_uri"):
            if not getattr(self, name):
                raise RequestRefused(
                    "bad_config",
                    "a cluster needs it, in a place that all of its machines reach",
                    key=f"pipeline.{name}",
                    value="",
                    master=self.master,
                )

    @property
    def broker_addresses(self) -> tuple[str, ...]:
        """Each broker's ``host:port``."""
        return addresses_of(self.brokers)


_BOUNDS = (
    ("settle_interval_ms", 100, DAY_MS),
    ("round_ms_max", 1_000, DAY_MS),
    ("check_budget_per_group", 1, 1_000_000),
    ("archive_interval_ms", 100, DAY_MS),
    ("lake_retention_days", 0, 36_500),
    ("lake_upkeep_interval_ms", 1_000, DAY_MS),
    ("driver_memory_mb", 256, 1_048_576),
    ("executor_memory_mb", 256, 1_048_576),
    ("executor_cores", 0, 1_024),
    ("shuffle_partitions", 1, 10_000),
    ("niceness", 0, LEFT_OVER),
    ("http_port", OFF, 65_535),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the pipeline keeps things."""

    lake: str
    checkpoints: str
    cache: Path


def places_of(config: PipelineConfig, data: Path | None) -> Places:
    """Settle where everything goes; `data` is the broker's data directory, if it is here.

    Raises:
        RequestRefused: ``bad_config``, without a data directory and a setting in its place.
    """
    inside = {
        "lake_uri": data and data / "lake",
        "checkpoint_uri": data and data / "pipeline" / "checkpoints",
    }
    for name, default in inside.items():
        if not getattr(config, name) and default is None:
            raise RequestRefused(
                "bad_config", "is needed without --data-dir", key=f"pipeline.{name}", value=""
            )
    cache = data / "pipeline" / "cache" if data else user_cache()
    return Places(
        lake=config.lake_uri or str(inside["lake_uri"]),
        checkpoints=config.checkpoint_uri or str(inside["checkpoint_uri"]),
        cache=Path(config.cache_dir) if config.cache_dir else cache,
    )


def user_cache() -> Path:
    """Where programs of this user keep what they can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "escrowmq"


def is_local(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return _LOCAL.fullmatch(master) is not None


def addresses_of(brokers: str) -> tuple[str, ...]:
    """The addresses in a list with commas.

    Raises:
        RequestRefused: ``bad_config``, with the one that is none.
    """
    addresses = tuple(part.strip() for part in brokers.split(","))
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[2]) <= 65_535:  # noqa: PLR2004 -- ports end there
            raise RequestRefused(
                "bad_config",
                "must be host:port, with commas between several",
                key="pipeline.brokers",
                value=address,
            )
    return addresses


def spark_options_of(text: str) -> dict[str, str]:
    """Settings of Spark, from ``name=value name=value``; quotes are as in a shell.

    Raises:
        RequestRefused: ``bad_config``.
    """
    try:
        pairs = [part.partition("=") for part in shlex.split(text)]
    except ValueError as error:  # A quote that is not closed.
        raise _bad_options(str(error)) from None
    for name, _, value in pairs:
        if not name.startswith("spark.") or not value:
            raise _bad_options(name)
    return {name: value for name, _, value in pairs}


def _bad_options(what: str) -> RequestRefused:
    return RequestRefused(
        "bad_config",
        "write them as spark.name=value, with blanks between several",
        key="pipeline.spark_options",
        value=what,
    )


def spark_missing() -> RequestRefused:
    """The refusal of whoever did not install what the pipeline needs."""
    return RequestRefused("spark_missing", 'the pipeline needs it: pip install "escrowmq[spark]"')
