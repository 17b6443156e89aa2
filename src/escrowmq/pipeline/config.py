"""Settings of the pipeline.

Keep the imports light: the command line imports this at every start.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from escrowmq.model.bounds import bad_setting, check_bounds
from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.priority import LEFT_OVER

OFF = -1
DAY_MS = 24 * 3_600_000

_LOCAL = re.compile(r"local(\[.*\])?|local-cluster\[.*\]")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:,/\[\]]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """Section ``[pipeline]``."""

    #: Where Spark runs: `local[*]` is this machine, beside the pipeline. Anything else is a
    #: cluster, such as `spark://host:7077`.
    master: str = "local[*]"
    #: The brokers to look after: `host:port`, several separated by commas. `escrowmq up` replaces
    #: this with its own broker.
    brokers: str = "127.0.0.1:10911"
    #: The longest delay before due work is examined. Work that is left over, for example because no
    #: producer is online, is retried after the same interval.
    settle_interval_ms: int = 5_000
    #: A round that takes longer than this is abandoned, and the next round tries again.
    round_ms_max: int = 600_000
    #: The most back-checks for one producer group in one round.
    check_budget_per_group: int = 1_000
    #: Whether the pipeline archives topics and transactions to the lake.
    archive: bool = True
    #: The pipeline archives new data at most once per interval.
    archive_interval_ms: int = 10_000
    #: Whether the pipeline compares half and op records with the brokers' state stores.
    compare: bool = True
    #: The pipeline compares new records at most once per interval.
    compare_interval_ms: int = 60_000
    #: Days that rows stay in the lake; 0 keeps them forever.
    lake_retention_days: int = 0
    #: How often the pipeline compacts the lake's small files and deletes rows past their retention.
    lake_upkeep_interval_ms: int = 3_600_000
    #: Where the lake and the streams' checkpoints are: a path or a URI. Empty means in the data
    #: directory. A cluster needs both, in a location that all of its machines can reach.
    lake_uri: str = ""
    checkpoint_uri: str = ""
    #: Where the files that speed up Spark's start are kept. Empty means in the data directory, or
    #: in the user's cache directory if there is no data directory.
    cache_dir: str = ""
    #: The heap of the driver's JVM, and of each executor's JVM in a cluster.
    driver_memory_mb: int = 1_024
    executor_memory_mb: int = 1_024
    #: Processors per executor in a cluster; 0 leaves it to the cluster.
    executor_cores: int = 0
    #: The number of partitions of a shuffle.
    shuffle_partitions: int = 4
    #: More Spark settings, as `name=value` separated by blanks. They override all others.
    spark_options: str = ""
    #: How much the pipeline yields the processor to a broker on the same machine: 0 is not at all,
    #: 19 is a lot, 20 uses only idle processor time. It has no effect with a cluster.
    niceness: int = LEFT_OVER
    #: Where the pipeline serves `/status` and `/metrics`. Port 0 means any free port, -1 means off.
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
                raise bad_setting(
                    f"pipeline.{name}",
                    "a cluster needs a location that all of its machines reach",
                    "",
                    master=self.master,
                )

    @property
    def broker_addresses(self) -> tuple[str, ...]:
        """The ``host:port`` of each broker."""
        return addresses_of(self.brokers)


_BOUNDS = (
    ("settle_interval_ms", 100, DAY_MS),
    ("round_ms_max", 1_000, DAY_MS),
    ("check_budget_per_group", 1, 1_000_000),
    ("archive_interval_ms", 100, DAY_MS),
    ("compare_interval_ms", 100, DAY_MS),
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
    """Where the pipeline keeps its files."""

    lake: str
    checkpoints: str
    cache: Path


def places_of(config: PipelineConfig, data: Path | None) -> Places:
    """Choose where everything goes; `data` is the broker's data directory, if it is local.

    Raises:
        RequestRefused: ``bad_config``, if there is neither a data directory nor the setting that
            replaces it.
    """
    inside = {
        "lake_uri": data and data / "lake",
        "checkpoint_uri": data and data / "pipeline" / "checkpoints",
    }
    for name, default in inside.items():
        if not getattr(config, name) and default is None:
            raise bad_setting(f"pipeline.{name}", "is needed without --data-dir", "")
    cache = data / "pipeline" / "cache" if data else user_cache()
    return Places(
        lake=config.lake_uri or str(inside["lake_uri"]),
        checkpoints=config.checkpoint_uri or str(inside["checkpoint_uri"]),
        cache=Path(config.cache_dir) if config.cache_dir else cache,
    )


def user_cache() -> Path:
    """The directory where this user's programs keep files that they can rebuild."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "escrowmq"


def is_local(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return _LOCAL.fullmatch(master) is not None


def addresses_of(brokers: str) -> tuple[str, ...]:
    """The addresses in a comma-separated list.

    Raises:
        RequestRefused: ``bad_config``, with the part that is not an address.
    """
    addresses = tuple(part.strip() for part in brokers.split(","))
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[2]) <= 65_535:  # noqa: PLR2004 -- the highest port
            raise bad_setting(
                "pipeline.brokers", "must be host:port, several separated by commas", address
            )
    return addresses


def spark_options_of(text: str) -> dict[str, str]:
    """Parse Spark settings from ``name=value name=value``, quoted as in a shell.

    Raises:
        RequestRefused: ``bad_config``.
    """
    try:
        pairs = [part.partition("=") for part in shlex.split(text)]
    except ValueError as error:  # An unclosed quote.
        raise _bad_options(str(error)) from None
    for name, _, value in pairs:
        if not name.startswith("spark.") or not value:
            raise _bad_options(name)
    return {name: value for name, _, value in pairs}


def _bad_options(what: str) -> RequestRefused:
    return bad_setting(
        "pipeline.spark_options", "must be spark.name=value, several separated by blanks", what
    )


def spark_missing() -> RequestRefused:
    """The error for an installation without the pipeline's dependencies."""
    return RequestRefused(
        "spark_missing", 'the pipeline needs Spark: pip install "escrowmq[spark]"'
    )
