"""Expected keys over what each chain left, against the dense softmax with the chain's own picks taken out."""

import pytest
import torch
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval import scoring
from recollect.retrieval.kernels import LN_2
from recollect.retrieval.keys import SharedKeys
from recollect.retrieval.leftover import leftover, untouched
from recollect.retrieval.scoring import score, summarise
from recollect.retrieval.selection import Chains
from tests.reference import dense_keys, dense_log_normaliser, dense_logits, dense_seen, dense_slot_log_probs
from tests.retrieval.cases import CASES, Case, Problem


def chains_of(problem: Problem, positions: Tensor) -> Chains:
    """Chains that took the given positions, with the dense normalisers, base 2."""
    logits, slots = problem.logits(), []
    for slot in range(positions.shape[2]):
        by_chain = []
        for chain in range(positions.shape[1]):
            log_probs = dense_slot_log_probs(logits[:, slot], positions[:, chain, :slot])
            left = logits[:, slot].masked_fill(log_probs == -torch.inf, -torch.inf)
            by_chain.append(left.logsumexp(1).masked_fill(positions[:, chain, slot] < 0, 0.0))
        slots.append(torch.stack(by_chain, dim=1))
    normaliser = (torch.stack(slots, dim=2) / LN_2).float()
    return Chains(positions, torch.zeros_like(normaliser), normaliser)


def dense_expected_keys(problem: Problem, positions: Tensor) -> Tensor:
    logits, keys = problem.logits(), dense_keys(problem.keys)
    expected = problem.queries.new_zeros(*positions.shape, problem.keys.width).double()
    for slot in range(positions.shape[2]):
        for chain in range(positions.shape[1]):
            p = dense_slot_log_probs(logits[:, slot], positions[:, chain, :slot]).exp()
            expected[:, chain, slot] = (p.unsqueeze(1) @ keys).squeeze(1)
    return expected


@pytest.mark.parametrize("tile_bytes", [1, 1 << 22])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_chain_leaves_out_its_own_picks_only(case: Case, tile_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "TILE_BYTES", tile_bytes)
    problem = case.build()
    batch = problem.queries.shape[0]
    # Chains that share picks at the same slot and at different ones; each input picks what it sees.
    picks = torch.tensor([[0, 1, 2], [1, 0, 3], [0, 2, 1], [4, 0, 5], [0, 1, 2]])
    seen = dense_seen(problem.visible, problem.keys.num_items)
    visible = [row.nonzero().squeeze(1) if row.any() else torch.zeros(1, dtype=torch.long) for row in seen]
    length = seen.sum(1).view(-1, 1, 1)
    positions = torch.stack([row[picks % row.shape[0]] for row in visible])
    # Where there are too few items, chains end early, as those that were really chosen do.
    enough = torch.arange(3) < length
    repeated = torch.zeros(batch, 5, 3, dtype=torch.bool)
    repeated[:, :, 1] = positions[:, :, 1] == positions[:, :, 0]
    positions = torch.where(enough & ~repeated, positions, -1)
    for row in ((length.flatten() < 6) & (length.flatten() > 0)).nonzero().squeeze(1).tolist():
        positions[row] = torch.where(enough[row], visible[row][torch.arange(3) % visible[row].shape[0]], -1)
    for first in (0, 1, 2):
        found = leftover(problem.scores(), chains_of(problem, positions), slice(first, None)).expected_keys()
        expected = dense_expected_keys(problem, positions)[:, :, first:]
        expected = expected.masked_fill((positions[:, :, first:] < 0).unsqueeze(-1), 0.0)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_what_is_left_when_a_pick_held_all_the_mass() -> None:
    """At this temperature the taken item's exponential is beyond float32 beside the others': 0/0 by subtraction."""
    keys = torch.tensor([[100.0, 1.0], [1.0, 0.5], [1.0, -0.5], [0.9, 0.0]])
    queries, visible = torch.tensor([[[1.0, 0.0]] * 2]), Visible(torch.tensor([0]), torch.tensor([4]))
    problem = Problem(queries, SharedKeys(keys), visible, 0.001, 0)
    positions = torch.tensor([[[0, 1], [1, 0], [2, 0]]])
    found = leftover(problem.scores(), chains_of(problem, positions), slice(0, None)).expected_keys()
    torch.testing.assert_close(found[0, :, 0], keys[[0, 0, 0]])
    torch.testing.assert_close(found[0, :, 1], torch.tensor([[1.0, 0.0], [100.0, 1.0], [100.0, 1.0]]))


def test_before_anything_is_taken() -> None:
    problem = Case("shared", 300, recency=True).build()
    normaliser = (dense_log_normaliser(problem.logits()) / LN_2).float()
    nothing = problem.visible.stop <= problem.visible.start
    left = untouched(problem.scores(), normaliser.masked_fill(nothing.unsqueeze(1), torch.inf))
    expected = problem.logits().softmax(2).nan_to_num(0.0) @ dense_keys(problem.keys)
    torch.testing.assert_close(left.expected_keys().squeeze(1).double(), expected, rtol=1e-5, atol=1e-5)


def test_garbage_out_of_sight_counts_for_nothing() -> None:
    queries, keys = torch.randn(2, 2, 4), torch.randn(600, 4)
    keys[:10], keys[400:] = torch.nan, torch.inf
    visible = Visible(torch.tensor([10, 12]), torch.tensor([400, 12]))
    scores = score(queries, SharedKeys(keys), visible, temperature=1.0)
    summary = summarise(scores)
    normaliser = (summary.maximum.exp2() * summary.total).sum(2).log2()
    positions = torch.tensor([[[20, 30]], [[-1, -1]]])
    chains = Chains(positions, torch.zeros(2, 1, 2), normaliser.unsqueeze(1).masked_fill(positions < 0, 0.0))
    found = leftover(scores, chains, slice(0, None)).expected_keys()
    seen = Visible(visible.start[:1] - 10, visible.stop[:1] - 10)
    logits = dense_logits(queries[:1], keys[10:400], seen, scores.scale)
    expected = logits[0, 0].softmax(0) @ keys[10:400].double()
    torch.testing.assert_close(found[0, 0, 0].double(), expected, rtol=1e-5, atol=1e-5)
    assert bool((found[1] == 0).all())
