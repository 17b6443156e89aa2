"""Users and policies, of a running broker or in the data directory of a stopped one."""
