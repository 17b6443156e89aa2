"""The SDK: producers, transactions, consumers and the ledger table, in sync and async form."""
