"""Formats a log record as one line or one JSON object: time, level, logger, event, facts."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from escrowmq.model.event_log import EVENT, RECORD_ATTRIBUTES

#: The lowest level of our own events that each command logs if ``log.level`` is ``auto``.
BROKER_LEVEL = "warning"
PIPELINE_LEVEL = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Section ``[log]``.

    The log goes to standard error; a command's output goes to standard output.
    """

    #: Format of each log line: `text` for people, or `json`, one object per line, for programs.
    format: Literal["text", "json"] = "text"
    #: Events below this level are not logged. ``auto`` means ``warning`` for the broker and
    #: ``info`` for the pipeline.
    level: Literal["auto", "debug", "info", "warning", "error"] = "auto"


def _facts(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    return ((key, value) for key, value in vars(record).items() if key not in RECORD_ATTRIBUTES)


class LineFormatter(logging.Formatter):
    """``2026-11-16T19:20:00Z WARNING escrowmq.pipeline broker_away broker='127.0.0.1:1'``.

    An event's message already contains its facts, so any formatter prints them.
    """

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")


class JsonFormatter(logging.Formatter):
    """``{"ts":"2026-11-16T19:20:00.123Z","level":"WARNING","logger":…,"event":…,"broker":…}``."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one object on one line: four fixed keys, then the facts, then any trace."""
        seconds, ms = divmod(int(record.created * 1_000), 1_000)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        line: dict[str, object] = {
            "ts": f"{at}.{ms:03}Z",
            "level": record.levelname,
            "logger": record.name,
            "event": getattr(record, EVENT, None) or record.getMessage(),
        }
        for key, value in _facts(record):
            # A fact must not replace one of the fixed keys.
            line[f"{key}_" if key in line else key] = value
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


_FORMATTERS = {"text": LineFormatter, "json": JsonFormatter}


def log_to_stderr(auto_level: str, config: LogConfig) -> None:
    """Log our own events from the configured level up, and those of libraries from WARNING up."""
    level = auto_level if config.level == "auto" else config.level
    handler = logging.StreamHandler()
    handler.setFormatter(_FORMATTERS[config.format]())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("escrowmq").setLevel(level.upper())
