"""The ledger table: its rows, lookups, fences, and cleaning."""
