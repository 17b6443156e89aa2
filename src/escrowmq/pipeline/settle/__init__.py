"""Settle rounds: undecided transactions are looked up, asked about, decided or parked."""
