"""Pure rules of half messages: commands and time in, records and refusals out."""
