"""Types that all packages share: messages, offsets, errors, the clock. Imports no other package."""
