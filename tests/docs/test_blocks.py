"""Every block of Python and shell in the README and the documentation runs as it stands, page by page, in order.

A block's language says what it is: `python` and `sh` are run; of `console`, which is for what takes long, only the
options are checked; `text` and others are just shown.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from recollect.cli import app
from tests.docs.pages import NOTEBOOKS, PAGES, ROOT, blocks_of, name_of

RUN, CHECKED, SHOWN = (
    ("python", "sh"),
    ("console",),
    ("text", "toml", "json", "ini", "systemd", "nginx", "yaml", "http", "dockerfile"),
)


def test_every_block_says_what_it_is() -> None:
    for page in PAGES:
        for language, content in blocks_of(page):
            assert language in (*RUN, *CHECKED, *SHOWN), f"{name_of(page)}: a block of {language or 'no language'}"
            if language in CHECKED:
                assert all(line.startswith("$ ") for line in content.splitlines()), content
        assert not re.search(r"^    (recollect|make|pip|python) ", page.read_text(), re.MULTILINE), name_of(page)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_take_long_have_options_that_are_there(page: Path) -> None:
    for language, content in blocks_of(page):
        if language in CHECKED:
            for line in content.splitlines():
                check_command(line.removeprefix("$ "))


def check_command(line: str) -> None:
    """That what it names is there: the command and its options, the target of make, the file."""
    program, *words = shlex.split(line, comments=True)
    if program == "recollect":
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands"):
            name, *words = words
            command = command.commands[name]
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= known, line
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
    elif program == "python":
        assert (ROOT / words[0]).exists(), line


def test_notebooks_are_kept_without_outputs() -> None:
    """They run below; what they print belongs to whoever runs them."""
    assert NOTEBOOKS
    for notebook in NOTEBOOKS:
        plain = json.loads(notebook.read_text())
        assert (plain["nbformat"], plain["nbformat_minor"]) == (4, 5)
        assert len({cell["id"] for cell in plain["cells"]}) == len(plain["cells"])
        for cell in plain["cells"]:
            assert not cell.get("outputs"), notebook.name
            assert cell.get("execution_count") is None


def run_pages(pages: list[Path], cache: Path) -> dict[str, str]:
    """What each page printed."""
    place = {"PYTHONPATH": str(ROOT), "RECOLLECT_CACHE": str(cache), "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.docs.pages", *map(str, pages)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **place}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    parts = done.stdout.split("== ")[1:]
    return {name: told for name, _, told in (part.partition("\n") for part in parts)}


RUNNING = [page for page in PAGES if any(language in RUN for language, _ in blocks_of(page))]
HOW_TOS = [page for page in RUNNING if page.parent.name == "how-to"]


def test_how_tos_and_notebooks_run(tmp_path: Path) -> None:
    told = run_pages([*HOW_TOS, *NOTEBOOKS], tmp_path)
    shares = dict(re.findall(r"^(before|after)\.jsonl ([\d.]+)$", told["docs/how-to/moderation.md"], re.MULTILINE))
    assert float(shares["after"]) > float(shares["before"])  # the class that is new is answered
    assert len(told) == 4


def test_all_other_pages_run(tmp_path: Path) -> None:
    told = run_pages([page for page in RUNNING if page not in HOW_TOS], tmp_path)
    assert "similarity" in told["README.md"]  # the precedents are shown
    assert len(told) >= 3
