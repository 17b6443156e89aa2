"""The proof: compares what brokers, the lake, ledgers and users' tables say."""
