"""Writes the generated pages into the folder that the first argument names."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.reference.pages import write

write(Path(sys.argv[1]))
