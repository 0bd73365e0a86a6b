"""What commands write for machines."""

import json
import tomllib
from pathlib import Path

import pytest

from recollect.cli_config import CONFIG, echo_json, write_config


def test_json_for_machines_has_null_for_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    echo_json({"overall": {"auc": float("nan"), "accuracy": 1.0}})
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found == {"overall": {"auc": None, "accuracy": 1.0}}


@pytest.mark.parametrize("name", ["mood \N{GRINNING FACE}", 'quo"ted', "back\\slash", "zwölf", "two\nlines"])
def test_settings_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    settings = {"label": name, "out": "elsewhere", "columns_only": False, "steps": None, "peer": ["a", "b"]}
    write_config(settings, tmp_path)
    assert tomllib.loads((tmp_path / CONFIG).read_text(encoding="utf-8")) == {"label": name, "peer": ["a", "b"]}
