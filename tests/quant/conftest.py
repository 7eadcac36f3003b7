"""Makes the GGUF writer of the tests of `models/` importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
