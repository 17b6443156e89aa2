"""Access control as rules: what requests need, what policies say about it. No I/O, no clock."""
