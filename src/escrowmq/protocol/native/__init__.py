"""EscrowMQ's native requests, which travel in remoting frames: headers, rows, Arrow."""
