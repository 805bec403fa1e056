"""The tests of grad mode, inference mode and autocast, which share their subjects."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
