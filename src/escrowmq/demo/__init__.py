"""The order scenario of ``escrowmq demo``: its services, its faults, and its results."""
