"""The cost of counting per request, and of a scrape for the broker.

    make bench NAME=metrics [ARGS="counting scrape"]

Prints one JSON object per figure.
"""

from __future__ import annotations

import sys

from bench.figures import scraping

FIGURES = {"counting": scraping.counting, "scrape": scraping.scrape}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]()
