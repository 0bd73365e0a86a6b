"""The README's Python runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_library_lines_run_and_follow_the_new_labels(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    scope: dict[str, object] = {}
    exec(code, scope)
    told = capsys.readouterr().out
    assert "down" in told
    assert "similarity" in told
