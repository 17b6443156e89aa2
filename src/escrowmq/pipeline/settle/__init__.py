"""Rounds of settling: what is undecided is looked up, asked for, decided or parked."""
