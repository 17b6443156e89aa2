"""The programs behind `make bench`, a module per group of figures."""
