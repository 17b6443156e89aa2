"""Messages between a broker and its look-up process, over pipes."""
