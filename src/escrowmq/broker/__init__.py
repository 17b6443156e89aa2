"""The asyncio shell: sockets, the one writer, delivery, back-checks.  Owns time."""
