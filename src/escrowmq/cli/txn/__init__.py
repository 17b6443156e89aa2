"""``escrowmq txn``: list, explain and end undecided transactions."""
