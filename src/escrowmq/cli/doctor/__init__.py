"""``escrowmq doctor``: checks of the machine, the data, the broker and the ledgers."""
