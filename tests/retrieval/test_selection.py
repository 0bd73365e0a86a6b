"""Chains drawn block by block: the dense distribution exactly, the newest of equals, and nothing out of sight."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval import scoring
from recollect.retrieval.kernels import LN_2
from recollect.retrieval.keys import OwnKeys, SharedKeys
from recollect.retrieval.scoring import Scores, score, summarise
from recollect.retrieval.selection import Chains, draw, greedy
from tests.reference import dense_greedy, dense_log_p, dense_logits, dense_order, dense_slot_log_probs
from tests.retrieval.cases import CASES, RETRIEVED, Case

EDGE = 2e-6  # how far inside an interval of the distribution function still counts as its very end


def drawn(scores: Scores, uniforms: Tensor) -> Chains:
    return draw(scores, summarise(scores), uniforms)


def best(scores: Scores) -> Chains:
    return greedy(scores, summarise(scores))


@pytest.fixture(params=["one block a tile", "one tile"])
def _tile_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "one block a tile":
        monkeypatch.setattr(scoring, "TILE_BYTES", 1)


# The distribution


@pytest.mark.parametrize("slot", range(RETRIEVED))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_item_has_its_interval_of_the_dense_distribution(case: Case, slot: int) -> None:
    """A slot inverts a distribution function with one uniform number. So its probabilities are exact if numbers just
    inside both ends of each item's interval, and in its middle, select the item."""
    problem = case.build(temperature=1.5)
    scores = problem.scores().slots(slice(0, slot + 1))
    batch, logits = problem.queries.shape[0], problem.logits()
    earlier_uniforms = torch.rand(batch, 1, slot + 1, generator=torch.Generator().manual_seed(slot))
    earlier = drawn(scores, earlier_uniforms).positions[:, 0, :slot]

    log_probs = dense_slot_log_probs(logits[:, slot], earlier)
    p = log_probs.exp()
    upper = p.cumsum(1)
    points = torch.stack([upper - p + EDGE, upper - p / 2, upper - EDGE], dim=1)  # [batch, 3, items]
    selectable = p > 0
    assert bool((p[selectable] > 4 * EDGE).all()), "an interval is too small to probe: raise the temperature"

    uniforms = earlier_uniforms.double().repeat(1, 3 * problem.keys.num_items, 1)
    uniforms[:, :, slot] = torch.where(selectable.unsqueeze(1), points, 0.5).flatten(1)
    chains = drawn(scores, uniforms)
    assert torch.equal(chains.positions[:, :, :slot], earlier.unsqueeze(1).expand(-1, 3 * problem.keys.num_items, -1))
    found = chains.positions[:, :, slot].unflatten(1, (3, -1))
    expected = torch.arange(problem.keys.num_items).expand_as(found)
    probed = selectable.unsqueeze(1).expand_as(found)
    assert torch.equal(found[probed], expected[probed])

    log_p = chains.log_p[:, :, slot].unflatten(1, (3, -1)).double()
    torch.testing.assert_close(log_p[probed], log_probs.unsqueeze(1).expand_as(log_p)[probed], rtol=1e-5, atol=1e-5)
    nothing = ~selectable.any(1)
    assert bool((found[nothing] == -1).all())
    assert bool((log_p[nothing] == 0).all())


@pytest.mark.parametrize("temperature", [1.0, 0.05, 0.001])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_log_probabilities_are_the_dense_ones(case: Case, temperature: float) -> None:
    problem = case.build(temperature, clusters=9 if temperature < 1 else None)
    uniforms = torch.rand(problem.queries.shape[0], 4, RETRIEVED, generator=torch.Generator().manual_seed(1))
    exact, naive = problem.logits(), problem.logits(dtype=torch.float32)
    rounding = torch.finfo(torch.float32).eps * exact[exact > -torch.inf].abs().max()
    for chains in (drawn(problem.scores(), uniforms), best(problem.scores())):
        by_chain = chains.positions.unbind(1)
        expected = torch.stack([dense_log_p(exact, positions) for positions in by_chain], dim=1)
        plain = torch.stack([dense_log_p(naive, positions) for positions in by_chain], dim=1)
        error, plain_error = (chains.log_p - expected).abs().max(), (plain - expected).abs().max()
        assert error <= plain_error + rounding
        assert bool((chains.log_p <= 0).all())


@pytest.mark.parametrize("keep_bytes", [0, 1 << 30], ids=["recomputed", "kept"])
def test_large_logits_leave_room_for_their_differences(keep_bytes: int) -> None:
    """At a logit of 65,536 a float32 normaliser is exact to 1/256 only; the log-probability is to be better."""
    keys = torch.zeros(600, 1)
    keys[[10, 20, 400]] = torch.tensor([[65536.0], [65535.0], [65534.0]])
    visible = Visible(torch.tensor([0]), torch.tensor([600]))
    queries = torch.full((1, 3, 1), LN_2)  # so that base-2 logits are whole numbers
    scores = score(queries, SharedKeys(keys), visible, temperature=1.0, keep_bytes=keep_bytes)
    torch.testing.assert_close(scores.scaled, torch.ones(1, 3, 1), rtol=0, atol=0)
    chain = best(scores)
    assert chain.positions.tolist() == [[[10, 20, 400]]]
    logits = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64) * LN_2
    expected = torch.stack([logits[slot:].log_softmax(0)[0] for slot in range(3)])
    torch.testing.assert_close(chain.log_p[0, 0].double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_normalisers_are_over_what_was_selectable(case: Case) -> None:
    problem = case.build()
    chains = best(problem.scores())
    logits, positions = problem.logits(), chains.positions[:, 0]
    for slot in range(RETRIEVED):
        log_probs = dense_slot_log_probs(logits[:, slot], positions[:, :slot])
        left = torch.isfinite(log_probs)
        expected = logits[:, slot].masked_fill(~left, -torch.inf).logsumexp(1).masked_fill(~left.any(1), 0.0)
        torch.testing.assert_close(chains.normaliser[:, 0, slot].double() * LN_2, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(chains.filled[:, 0], positions >= 0)


def test_rows_are_chosen_in_slices_that_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Case("shared", 507).build()
    uniforms = torch.rand(problem.queries.shape[0], 2, RETRIEVED)
    whole = drawn(problem.scores(), uniforms)
    monkeypatch.setattr(scoring.row_slices, "__defaults__", (1,), raising=True)
    parts = drawn(problem.scores(), uniforms)
    assert torch.equal(parts.positions, whole.positions)
    torch.testing.assert_close(parts.log_p, whole.log_p)


# The greedy chain


@pytest.mark.usefixtures("_tile_bytes")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_greedy_chain_excludes_its_own_picks_only(case: Case) -> None:
    problem = case.build()
    scores = problem.scores()
    assert torch.equal(best(scores).positions[:, 0], dense_greedy(problem.logits(), dense_order(problem.keys)))
    # Drawing from the same summary first leaves no trace in it.
    summary = summarise(scores)
    draw(scores, summary, torch.rand(problem.queries.shape[0], 3, RETRIEVED))
    assert torch.equal(greedy(scores, summary).positions, best(scores).positions)


@pytest.mark.usefixtures("_tile_bytes")
@pytest.mark.parametrize("retrieved", [1, 2, 4, 9])
@pytest.mark.parametrize("keep_bytes", [0, 1 << 30], ids=["recomputed", "kept"])
@pytest.mark.parametrize("distinct", [1, 2, 5, 100])
def test_ties_go_to_the_newest_item(distinct: int, keep_bytes: int, retrieved: int) -> None:
    """Equal keys tie to the last bit within a block and across blocks, whether a block was multiplied in the pass or
    again for a later slot."""
    generator = torch.Generator().manual_seed(distinct)
    items, batch = 1100, 5
    table = torch.randn(distinct, 12, generator=generator)
    keys = table[torch.randint(distinct, (items,), generator=generator)]
    queries = torch.randn(batch, retrieved, 12, generator=generator)
    visible = Visible(torch.tensor([0, 0, 200, 300, 510]), torch.tensor([1100, 513, 1000, 900, 514]))
    for layout in (SharedKeys(keys), OwnKeys(keys.repeat(batch, 1, 1))):
        scores = score(queries, layout, visible, temperature=0.3, keep_bytes=keep_bytes)
        expected = dense_greedy(dense_logits(queries, keys, visible, scores.scale))
        assert torch.equal(best(scores).positions[:, 0], expected)


# What is visible


@settings(max_examples=100)
@given(data=st.data())
def test_no_index_is_ever_outside_the_visible_interval(data: st.DataObject) -> None:
    items = data.draw(st.sampled_from([0, 1, 2, 5, 255, 256, 257, 600]), label="items")
    own = data.draw(st.booleans(), label="own")
    retrieved = data.draw(st.integers(1, 5), label="retrieved")
    temperature = data.draw(st.sampled_from([1e-3, 1.0, 100.0]), label="temperature")
    seed = data.draw(st.integers(0, 5), label="seed")
    start = data.draw(st.lists(st.integers(0, items), min_size=3, max_size=3), label="start")
    length = data.draw(st.lists(st.integers(0, items), min_size=3, max_size=3), label="length")
    uniform = st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2.0**-53]))
    numbers = data.draw(st.lists(uniform, min_size=6 * retrieved, max_size=6 * retrieved), label="uniforms")
    stop = [min(first + size, items) for first, size in zip(start, length, strict=True)]
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(*([3] if own else []), items, 4, generator=generator)
    scores = score(
        torch.randn(3, retrieved, 4, generator=generator),
        OwnKeys(keys) if own else SharedKeys(keys),
        Visible(torch.tensor(start), torch.tensor(stop)),
        temperature=temperature,
        keep_bytes=data.draw(st.sampled_from([0, 1 << 30]), label="keep_bytes"),
    )
    for chains in (drawn(scores, torch.tensor(numbers, dtype=torch.float64).view(3, 2, retrieved)), best(scores)):
        assert bool(torch.isfinite(chains.log_p).all())
        for row in range(3):
            for chain in chains.positions[row].tolist():
                there = min(retrieved, stop[row] - start[row])
                assert chain[there:] == [-1] * (retrieved - there)
                assert all(start[row] <= pick < stop[row] for pick in chain[:there])
                assert len(set(chain[:there])) == there


@pytest.mark.parametrize("keys", [SharedKeys(torch.zeros(0, 4)), OwnKeys(torch.zeros(2, 0, 4))], ids=["shared", "own"])
def test_an_empty_history_fills_no_slot(keys: SharedKeys | OwnKeys) -> None:
    visible = Visible(torch.tensor([0, 0]), torch.tensor([0, 0]))
    scores = score(torch.randn(2, 3, 4), keys, visible, temperature=1.0)
    for chains in (drawn(scores, torch.rand(2, 2, 3)), best(scores)):
        assert bool((chains.positions == -1).all())
        assert not bool(chains.filled.any())
        assert bool((chains.log_p == 0).all())


# Same bits: with recomputed logits, as in prediction

START = torch.tensor([0, 40, 3, 190, 7, 250, 0, 60])
STOP = torch.tensor([200, 199, 5, 195, 7, 259, 257, 61])


def chosen(keys: Tensor, queries: Tensor, visible: Visible, uniforms: Tensor) -> list[Tensor]:
    scores = score(queries, SharedKeys(keys), visible, temperature=0.4)
    chains = [drawn(scores, uniforms), best(scores)]
    return [part for chain in chains for part in (chain.positions, chain.log_p, chain.normaliser)]


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 4, 16, generator=generator), torch.rand(8, 2, 4, generator=generator, dtype=torch.float64)


@pytest.mark.usefixtures("_tile_bytes")
def test_appending_changes_no_bit_of_what_an_unchanged_interval_selects() -> None:
    queries, uniforms = inputs()
    history = torch.randn(3000, 16, generator=torch.Generator().manual_seed(1))
    first = chosen(history[:259], queries, Visible(START, STOP), uniforms)
    for items in (260, 512, 513, 1000, 3000):
        grown = chosen(history[:items], queries, Visible(START, STOP), uniforms)
        assert all(torch.equal(before, after) for before, after in zip(first, grown, strict=True))
        # Nor if another input of the batch sees what is new.
        stop = STOP.clone()
        stop[0] = items
        other = chosen(history[:items], queries, Visible(START, stop), uniforms)
        assert all(torch.equal(before[1:], after[1:]) for before, after in zip(first, other, strict=True))


def test_growing_into_a_second_block_changes_no_bit() -> None:
    queries, uniforms = inputs()
    history = torch.randn(700, 16, generator=torch.Generator().manual_seed(1))
    visible = Visible(START.clamp(max=200), STOP.clamp(max=200))
    first = chosen(history[:200], queries, visible, uniforms)
    for items in (256, 257, 700):
        grown = chosen(history[:items], queries, visible, uniforms)
        assert all(torch.equal(before, after) for before, after in zip(first, grown, strict=True))


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -1e30, 1e30])
def test_garbage_out_of_sight_changes_no_bit(garbage: float) -> None:
    queries, uniforms = inputs()
    history = torch.randn(600, 16, generator=torch.Generator().manual_seed(1))
    visible = Visible(torch.full((8,), 100), torch.tensor([400, 400, 102, 101, 100, 300, 257, 256]))
    clean = chosen(history, queries, visible, uniforms)
    history[:100], history[400:] = garbage, garbage
    soiled = chosen(history, queries, visible, uniforms)
    assert all(torch.equal(before, after) for before, after in zip(clean, soiled, strict=True))


@pytest.mark.parametrize("retrieved", [1, 3, 4, 16])
def test_a_row_of_a_tile_of_32_does_not_depend_on_its_neighbours(retrieved: int) -> None:
    generator = torch.Generator().manual_seed(retrieved)
    items = 2000
    keys = torch.randn(items, 64, generator=generator)
    queries = torch.randn(40, retrieved, 64, generator=generator)
    uniforms = torch.rand(40, 1, retrieved, generator=generator, dtype=torch.float64)
    start = torch.randint(items // 2, (40,), generator=generator)
    stop = start + torch.randint(items // 2, (40,), generator=generator)
    seen: dict[int, list[Tensor]] = {}
    for _ in range(8):
        rows = torch.randperm(40, generator=generator)[:32]
        for place, row in enumerate(rows.tolist()):
            if place == 0:
                found = chosen(keys, queries[rows], Visible(start[rows], stop[rows]), uniforms[rows])
            mine = [part[place] for part in found]
            known = seen.setdefault(row, mine)
            assert all(torch.equal(before, after) for before, after in zip(known, mine, strict=True))
    assert len(seen) == 40
