"""Folders of the project, and of the data that lie beside it on some machines."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DATA = ROOT / "tests" / "data"
SHARED_DATA = Path(os.environ.get("TENBIN_DATA") or ROOT.parent / "shared" / "data")
STENCIL = EXAMPLES / "stencil.py"
