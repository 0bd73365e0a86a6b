"""The command `recollect plan`: thin, like the rest of the command line; it loads nothing heavy."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from recollect.cli_config import JsonOption, echo_json
from recollect.config import ModelSettings, StepSettings, chains_for
from recollect.errors import SettingError
from recollect.planning.advice import Change, advise, most_items
from recollect.planning.plan import METHODS, RUNTIME_BYTES, Method, Plan, predict
from recollect.planning.sizes import BYTES, FeatureType, KeyType, Sizes, parse_number, show_bytes, show_number

VALIDATION = 512
"""Inputs validated with, as the training loop does it."""


def _number(text: str | int) -> int:
    try:
        return text if isinstance(text, int) else parse_number(text)
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error


Number = dict(parser=_number, metavar="NUMBER")


def plan(
    items: Annotated[int, typer.Option(**Number, help="Items in the history.")],
    feature_bytes: Annotated[int, typer.Option(**Number, help="Bytes of an item's features as stored.")],
    batch: Annotated[int, typer.Option(**Number, help="Inputs per step of training.")] = 256,
    retrieved: Annotated[int, typer.Option(**Number, help="Items retrieved per input.")] = ModelSettings.num_retrieved,
    key_dim: Annotated[int, typer.Option(**Number, help="Numbers in a key.")] = 64,
    samples: Annotated[
        int | None,
        typer.Option(**Number, help="Chains per input; a greedy chain counts.", show_default="32 items in all"),
    ] = None,
    key_dtype: Annotated[KeyType, typer.Option(help="Type of the keys in memory.")] = "float32",
    feature_dtype: Annotated[FeatureType, typer.Option(help="Type of the features as stored.")] = "float16",
    architecture: Annotated[Literal["precedents", "perceiver", "mlp"], typer.Option(help="Networks.")] = "precedents",
    width: Annotated[int, typer.Option(**Number, help="Of the networks.")] = ModelSettings.width,
    blocks: Annotated[int, typer.Option(**Number, help="Attention blocks.")] = ModelSettings.blocks,
    latents: Annotated[int, typer.Option(**Number, help="Of a Perceiver.")] = ModelSettings.latents,
    hidden: Annotated[list[int] | None, typer.Option(**Number, help="Hidden width of an MLP; may be repeated.")] = None,
    classes: Annotated[int, typer.Option(**Number, help="Classes.")] = 2,
    retrieve: Annotated[Literal["items", "labels"], typer.Option(help="What the classifier is shown.")] = "items",
    parameters: Annotated[
        int | None, typer.Option(**Number, help="Weights in all.", show_default="by the networks")
    ] = None,
    budget: Annotated[int | None, typer.Option(**Number, help="Bytes there are.", show_default="no limit")] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the peak memory of training, beside that of the paper's dense retrieval.

    Numbers may end in k, M, G or T (1.9M, 16G). The exit code is 1 where a budget is given and not met.

    Example: recollect plan --items 1.9M --key-dim 64 --batch 1024 --retrieved 4 --feature-bytes 8192 --budget 16G
    """
    if feature_bytes % BYTES[feature_dtype]:
        raise typer.BadParameter(
            f"{feature_bytes} bytes are no whole number of {feature_dtype}: give a multiple of {BYTES[feature_dtype]}, "
            "or another --feature-dtype"
        )
    try:
        sizes = Sizes(
            items,
            batch,
            retrieved,
            key_dim,
            feature_bytes // BYTES[feature_dtype],
            chains_for(StepSettings(), retrieved) if samples is None else samples,
            key_dtype,
            feature_dtype,
            classes,
            parameters,
            VALIDATION,
            ModelSettings(architecture, width, tuple(hidden or ()), latents=latents, blocks=blocks, retrieve=retrieve),
        )
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    plans = {method: predict(sizes, method) for method in METHODS}
    changes = [] if budget is None or plans["ours"].total <= budget else advise(sizes, budget)
    if as_json:
        echo_json(_as_json(sizes, plans, budget, changes))
    else:
        _print(sizes, plans, budget, changes)
    if budget is not None and plans["ours"].total > budget:
        raise typer.Exit(1)


def _as_json(sizes: Sizes, plans: dict[Method, Plan], budget: int | None, changes: list[Change]) -> dict[str, Any]:
    result: dict[str, Any] = {"sizes": asdict(sizes), "runtime_bytes": RUNTIME_BYTES}
    for method, planned in plans.items():
        result[method] = {
            "held": planned.held,
            "phases": {phase.name: phase.terms for phase in planned.phases},
            "peak_phase": planned.peak_phase.name,
            "total_bytes": planned.total,
        }
    if budget is not None:
        result["budget_bytes"] = budget
        result["fits"] = plans["ours"].total <= budget
        result["most_items"] = most_items(sizes, budget)
        result["advice"] = [
            {"options": list(change.options), "saves_bytes": change.saves, "fits": change.fits} for change in changes
        ]
    return result


def _print(sizes: Sizes, plans: dict[Method, Plan], budget: int | None, changes: list[Change]) -> None:
    from recollect.console import plain_console

    console = plain_console(highlight=False)
    console.print(_table(plans["ours"], plans["dense"]))
    console.print(
        f"dense is the paper's equation, one slot at a time; plain autograd, which keeps every slot, "
        f"would take {show_bytes(plans['dense_kept'].total)}."
    )
    if budget is None:
        return
    total = plans["ours"].total
    if total <= budget:
        room = f"up to {show_number(most_items(sizes, budget))} items would"
        console.print(f"fits into {show_bytes(budget)} with {show_bytes(budget - total)} to spare; {room}.")
        return
    console.print(f"does not fit into {show_bytes(budget)}: {show_bytes(total - budget)} too much.")
    for change in changes:
        console.print(f"  {change}")
    if not any(change.fits for change in changes):
        console.print("  none of these is enough: give a larger budget, or narrower networks (--width).")


def _table(ours: Plan, dense: Plan) -> Any:
    """Held terms, then every phase with its terms; of the phases only the largest counts."""
    from rich.table import Table

    table = Table(title="peak memory of training")
    table.add_column("")
    table.add_column("ours", justify="right")
    table.add_column("dense", justify="right")

    def row(name: str, *bytes_: int, style: str | None = None) -> None:
        table.add_row(name, *[show_bytes(count) if count else "" for count in bytes_], style=style)

    row("Python and torch", RUNTIME_BYTES, RUNTIME_BYTES)
    for name, count in ours.held.items():
        row(name, count, dense.held[name])
    table.add_section()
    for one, other in zip(ours.phases, dense.phases, strict=True):
        peaks = [name for name, planned in (("ours", ours), ("dense", dense)) if one.name == planned.peak_phase.name]
        row(one.name + (f" (peak of {' and '.join(peaks)})" if peaks else ""), one.total, other.total, style="bold")
        for term in one.terms | other.terms:
            counts = one.terms.get(term, 0), other.terms.get(term, 0)
            if any(counts):
                row(f"  {term}", *counts, style="dim")
    table.add_section()
    row("peak: what is held and the largest phase", ours.total, dense.total, style="bold")
    return table
