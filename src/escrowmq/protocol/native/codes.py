"""Codes of native requests; ``requests.py`` describes each request."""

from __future__ import annotations

from enum import IntEnum

FIRST_CODE = 30_000
LAST_CODE = 30_099


class NativeCode(IntEnum):
    """Codes of native requests. A code never changes its meaning."""

    # Facts.
    STATUS = 30_000
    PLAN_RANGES = 30_001
    LIST_TRANSACTIONS = 30_002
    LIST_HALVES = 30_003
    LIST_OPS = 30_004
    LIST_CHECKS = 30_005
    LIST_QUEUES = 30_006
    READ_MESSAGES = 30_007
    AWAIT_DUE = 30_008
    LIST_BATCHES = 30_009
    LIST_EVENTS = 30_010
    READ_STORED = 30_011
    FIND_ATTEMPTS = 30_012
    READ_LOG = 30_013
    LIST_NAMES = 30_014
    PREVIEW_HALVES = 30_015
    LIST_COMPARISON = 30_016
    LIST_STATE_STORE = 30_017

    # Writing.
    HOLD_HALVES = 30_020
    HOLD_MANY = 30_021
    SEND_MANY = 30_022
    DECIDE_MANY = 30_023
    DECIDE_BATCH = 30_024
    OBEY_VERDICTS = 30_025
    REPORT_LEDGERS = 30_026
    PIPELINE_HEARTBEAT = 30_027
    REPORT_COMPARISON = 30_028

    # Administration.
    LIST_TOPICS = 30_040
    LIST_GROUPS = 30_041
    LIST_OFFSETS = 30_042
    FIND_MESSAGES = 30_043
    LIFE_LINE = 30_044
    DECIDE_BY_HAND = 30_045
    RESUME = 30_046
    COPY_META = 30_047
    DELETE_TOPIC = 30_048
    LIST_LEDGERS = 30_049
    CONFIRM_CLOCK = 30_050
    PAUSE_GROUP = 30_060
    LIST_PAUSED = 30_061

    # Users.
    USER_PUT = 30_070
    USER_REMOVE = 30_071
    USER_LIST = 30_072
    ACL_EXPLAIN = 30_073


def is_native(code: int) -> bool:
    """Return whether this code belongs to native requests."""
    return FIRST_CODE <= code <= LAST_CODE
