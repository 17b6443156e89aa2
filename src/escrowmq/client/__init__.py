"""The SDK: producers, transactions, consumers and the ledger table; plain and async."""
