"""Back-checks, verdicts, and contradictions."""
