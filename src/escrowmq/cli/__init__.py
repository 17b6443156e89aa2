"""Arguments in, text out.  The only place that reads the environment and the config file."""
