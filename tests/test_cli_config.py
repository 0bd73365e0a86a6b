"""What commands write for machines."""

import json

import pytest

from recollect.cli_config import echo_json


def test_json_for_machines_has_null_for_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    echo_json({"overall": {"auc": float("nan"), "accuracy": 1.0}})
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found == {"overall": {"auc": None, "accuracy": 1.0}}
