"""EscrowMQ: a message reaches consumers if, and only if, the sender's own transaction committed."""
