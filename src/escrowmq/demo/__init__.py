"""The order scenario of ``escrowmq demo``: services, faults, and what became of the orders."""
