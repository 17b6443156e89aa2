"""Commands on the lake, the audit and the ledgers."""
