"""One broker through a year: retention, restarts, crashes, wrong clocks, full disks, restores."""
