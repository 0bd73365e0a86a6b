"""The report as one page that opens offline."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_page(report: Mapping[str, Any], path: Path) -> None:
    """To be drawn; until then the plain figures."""
    path.write_text(f"<pre>{json.dumps(report, indent=1).replace('<', '&lt;')}</pre>")
