"""Names of topics and groups that RocketMQ or EscrowMQ gives a meaning."""

from __future__ import annotations

from escrowmq.model.sink_attempt import GROUP_PREFIX

#: Topics that the broker names after a consumer group: its retries, and its dead letters.
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
GROUP_TOPIC_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX)
#: Topics that the broker creates on first use, even if ``auto_create`` is off.
OWN_PREFIXES = (*GROUP_TOPIC_PREFIXES, GROUP_PREFIX)

#: The topic from which new topics inherit their settings.
DEFAULT_TOPIC = "TBW102"
#: Prefix, in upper case, of the names of groups of RocketMQ's tools.
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
