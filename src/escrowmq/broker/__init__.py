"""The asyncio shell around the store: it owns time, sockets and the one writer."""
