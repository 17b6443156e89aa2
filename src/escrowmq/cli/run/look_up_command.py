"""How a broker starts its look-up process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.log_lines import LogConfig

if TYPE_CHECKING:
    from escrowmq.cli.config import Config


def look_up_command(config: Config) -> tuple[str, ...]:
    """Return the command line. The process logs as the broker does, to the same standard error."""
    log = msgspec.json.encode(config.section(LogConfig)).decode()
    return (sys.executable, "-m", "escrowmq.look_up.child", log)


def ledger_urls(config: Config) -> dict[str, str]:
    """Return the database URLs by configured name. They contain passwords: never show them."""
    return {name: ledger.url for name, ledger in config.ledgers.items()}
