"""The pop model: messages in flight, receipts, redelivery and dead letters."""
