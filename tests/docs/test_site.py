"""The site builds without a warning, asks nothing of any network, and its page of commands is up to date."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cli_reference import PAGE, reference

ROOT = Path(__file__).parents[2]


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    assert PAGE.read_text() == reference(), "run make docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"((?:https?:)?//[^\"]+)\"", page.read_text()
        )
        assert not fetched, f"{page.name}: {fetched}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\"?https?://|@import", style.read_text()), style.name


def test_classes_and_functions_are_described(site: Path) -> None:
    text = (site / "api.html").read_text()
    for name in ("RecollectClassifier.append", "HistoryWriter.correct", "paired_difference", "DataError"):
        assert name in text
