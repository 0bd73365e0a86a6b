"""`recollect plan` through the command line: what it prints, its exit codes, and that following its advice helps."""

import json
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from recollect.cli_plan import plan

EXAMPLE = ["--items", "1.9M", "--key-dim", "64", "--batch", "1024", "--retrieved", "4", "--feature-bytes", "8192"]

app = typer.Typer()
app.command()(plan)


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "200"})


def as_json(*args: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(invoke(*args, "--json").stdout)
    return result


def test_help_shows_an_example() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert "Example: recollect plan --items 1.9M" in " ".join(result.output.replace("│", " ").split())


def test_a_table_of_terms_for_both_ways_to_retrieve() -> None:
    result = invoke(*EXAMPLE)
    assert result.exit_code == 0
    for term in (
        "keys",
        "block summary",
        "tiles, draws",
        "logits, noise, mask",
        "items",
        "activations",
        "weights, Adam",
    ):
        assert term in result.output
    assert "486 MB" in result.output  # the keys: 1.9M x 64 x 4 bytes
    assert "(peak of dense)" in result.output


def test_json_says_the_same_and_more() -> None:
    found = as_json(*EXAMPLE)
    assert found["ours"]["held"]["keys"] == 1_900_000 * 64 * 4
    assert found["sizes"]["chains"] == 8  # 32 items fetched per input
    assert found["sizes"]["feature_width"] == 4096
    assert found["ours"]["total_bytes"] < found["dense"]["total_bytes"] < found["dense_kept"]["total_bytes"]
    assert "fits" not in found


def test_options_reach_the_plan() -> None:
    options = ["--samples", "2", "--key-dtype", "float16", "--feature-dtype", "float32", "--parameters", "10M"]
    nets = ["--architecture", "mlp", "--hidden", "1k", "--hidden", "512", "--width", "256", "--retrieve", "labels"]
    sizes = as_json(*EXAMPLE, *options, *nets, "--classes", "7")["sizes"]
    assert (sizes["chains"], sizes["key_type"], sizes["feature_width"]) == (2, "float16", 2048)
    assert (sizes["parameters"], sizes["classes"], sizes["model"]["hidden"]) == (10_000_000, 7, [1000, 512])
    assert (sizes["model"]["architecture"], sizes["model"]["retrieve"]) == ("mlp", "labels")


def test_what_fits_exits_with_0_and_says_how_much_more_would() -> None:
    result = invoke(*EXAMPLE, "--budget", "16G")
    assert result.exit_code == 0
    assert "fits into 16 GB with" in result.output
    assert "items would" in result.output


def test_what_does_not_fit_exits_with_1_and_following_the_advice_helps() -> None:
    base = [*EXAMPLE[:4], "--batch", "256", *EXAMPLE[6:], "--budget", "1.1G"]
    result = invoke(*base)
    assert result.exit_code == 1
    assert "does not fit into 1.10 GB" in result.output
    assert "--key-dtype float16 saves 243 MB: fits" in result.output
    advice = as_json(*base)["advice"]
    assert len(advice) > 3
    for change in advice:
        # A later option overrides an earlier one.
        assert invoke(*base, *change["options"]).exit_code == (0 if change["fits"] else 1)


def test_where_nothing_helps_it_says_so() -> None:
    result = invoke(*EXAMPLE, "--parameters", "1G", "--budget", "1G")
    assert result.exit_code == 1
    assert "give a larger budget" in result.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "Missing option"),
        ([*EXAMPLE, "--items", "many"], "write digits with k, M, G or T"),
        ([*EXAMPLE, "--budget", "-1"], "write digits"),
        ([*EXAMPLE, "--feature-bytes", "8191"], "give a multiple of 2, or another --feature-dtype"),
        ([*EXAMPLE, "--batch", "0"], "batch is 0: give 1 or more"),
        ([*EXAMPLE, "--key-dtype", "int8"], "int8"),
    ],
    ids=["nothing", "many", "negative", "odd", "no batch", "no such type"],
)
def test_wrong_usage_exits_with_2_and_names_the_remedy(args: list[str], message: str) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_it_loads_nothing_heavy() -> None:
    code = "import sys, recollect.cli_plan; print({'torch', 'numpy', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
