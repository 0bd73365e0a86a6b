"""Runs the blocks of Python and shell of pages, and notebooks, in order, each in a directory of its own.

A program, so that the pages run as for a user: without the tests' checks of shapes, which double the time, and with all
heavy imports made once. `python -m tests.docs.pages PAGE...` prints each page and stops at the first that fails.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """Language and content of each fenced block, or of each cell of code."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text())["cells"]
        return [("python", "".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
    return re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run_page(page: Path) -> None:
    """In the current directory."""
    if page.name == "README.md":
        write_readme_files()
    scope: dict[str, Any] = {"__name__": "__main__"}
    for language, content in blocks_of(page):
        if language == "python":
            exec(compile(content, name_of(page), "exec"), scope)
        elif language == "sh":
            for line in content.replace("\\\n", " ").splitlines():
                run_command(line)


def run_command(command: str) -> None:
    """Our own commands within this process, since importing torch for each would take minutes in all."""
    from typer.testing import CliRunner

    from recollect.cli import app

    words = shlex.split(command, comments=True)
    if words[:1] != ["recollect"] or set(words) & {"|", ">", "&"}:
        subprocess.run(command, shell=True, check=True)
        return
    result = CliRunner().invoke(app, words[1:])
    if result.exit_code != 0:
        sys.exit(f"{command}\n{result.output}{result.exception!r}")


def write_readme_files() -> None:
    """What the README takes for granted: a table of one's own, and newer rows of it."""
    import polars as pl

    from recollect.data.electricity import electricity_table

    table = electricity_table()[:200].rename({"target": "fraud", "time": "created_at"})
    moments = [datetime(2024, 1, 1) + timedelta(hours=6 * row) for row in range(table.height)]
    table = table.with_columns(pl.Series("created_at", moments))
    for name, rows in (("events", table[:160]), ("new", table[160:180]), ("today", table[180:])):
        rows.write_csv(f"{name}.csv")


if __name__ == "__main__":
    for each in map(Path, sys.argv[1:]):
        print(f"== {name_of(each)}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            run_page(each)
            os.chdir(ROOT)
