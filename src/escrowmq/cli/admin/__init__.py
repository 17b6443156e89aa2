"""Commands that ask a running broker: topics, groups, messages, status, clock."""
