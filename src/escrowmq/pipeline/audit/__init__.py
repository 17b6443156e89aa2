"""The proof: what brokers, lake, ledgers and users' tables say, held against each other."""
