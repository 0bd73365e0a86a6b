"""What to change when a plan doesn't fit its budget: every change is planned anew, and said to fit only if it does."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from recollect.planning.plan import predict
from recollect.planning.sizes import Sizes, exact_number, round_down, show_bytes

FEWEST_CHAINS = 2
"""Chains are compared with each other, so there must be two."""


@dataclass(frozen=True)
class Change:
    """Other sizes, as options of the command line, with what they save and whether they fit."""

    options: tuple[str, ...]
    sizes: Sizes
    saves: int
    fits: bool

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit yet"
        return f"{' '.join(self.options)} saves {show_bytes(self.saves)}: {verdict}"


def advise(sizes: Sizes, budget: int) -> list[Change]:
    """The mildest change of each kind that fits, those that cost least in what is learned first.

    Where no single one is enough, those that save anything, and a combination of them that fits if there is one.
    """

    before = predict(sizes).total

    def change(*options: str, **changes: object) -> Change:
        other: Sizes = replace(sizes, **changes)  # type: ignore[arg-type]
        after = predict(other).total
        return Change(options, other, before - after, after <= budget)

    single = [_mildest(candidates) for candidates in _kinds(sizes, budget, change)]
    useful = [one for one in single if one is not None and one.saves > 0]
    if any(one.fits for one in useful):
        return [one for one in useful if one.fits]
    combined = _combination(sizes, budget, change)
    return useful + ([combined] if combined is not None else [])


Make = Callable[..., Change]


def _kinds(sizes: Sizes, budget: int, change: Make) -> Iterable[Iterable[Change]]:
    """Candidates of each kind, from the mildest on."""
    if sizes.key_type == "float32":
        yield [change("--key-dtype", "float16", key_type="float16")]
    yield (change("--samples", str(n), chains=n) for n in range(sizes.chains - 1, FEWEST_CHAINS - 1, -1))
    yield (change("--batch", str(n), batch=n) for n in _halves(sizes.batch))
    yield (
        change("--retrieved", str(n), "--samples", str(sizes.chains), retrieved=n)
        for n in range(sizes.retrieved - 1, 0, -1)
    )
    if sizes.shows_features:
        yield [change("--retrieve", "labels", model=replace(sizes.model, retrieve="labels"))]
    items = most_items(sizes, budget)
    if items:
        yield [change("--items", exact_number(items), items=items)]


def _mildest(candidates: Iterable[Change]) -> Change | None:
    """The first that fits, else the last."""
    last = None
    for last in candidates:
        if last.fits:
            break
    return last


def _combination(sizes: Sizes, budget: int, change: Make) -> Change | None:
    """Narrow keys and few chains, then smaller batches; if that is not enough, fewer items too."""
    chains = min(sizes.chains, FEWEST_CHAINS)
    key_type = "float16" if sizes.key_type == "float32" else sizes.key_type
    for fewer_items in (False, True):
        for batch in (sizes.batch, *_halves(sizes.batch)):
            options = ["--key-dtype", key_type, "--samples", str(chains), "--batch", str(batch)]
            combined = change(*options, key_type=key_type, chains=chains, batch=batch)
            if fewer_items:
                items = most_items(combined.sizes, budget)
                options += ["--items", exact_number(items)]
                combined = change(*options, key_type=key_type, chains=chains, batch=batch, items=items)
            if combined.fits:
                return combined
    return None


def _halves(number: int) -> Iterable[int]:
    while number > 1:
        number //= 2
        yield number


def most_items(sizes: Sizes, budget: int) -> int:
    """The largest history that fits, rounded down to two digits; 0 if none does."""

    def fits(items: int) -> bool:
        return predict(replace(sizes, items=items)).total <= budget

    if not fits(0):
        return 0
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    items = round_down(low)
    # Where a smaller history would have its logits kept, the rounded number may not fit.
    return items if fits(items) else low
