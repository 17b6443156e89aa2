"""The command line. Only this package reads the environment and the config file."""
