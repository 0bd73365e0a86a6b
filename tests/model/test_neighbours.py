"""Neighbours against brute force; a correction that leaves alone what is right and gives up what is wrong."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.model.neighbours import APART, corrected, nearest, vote, with_new_classes
from recollect.records import Visible
from recollect.retrieval.keys import SharedKeys


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("recency", [False, True])
def test_the_nearest_of_what_is_visible(recency: bool) -> None:
    keys, own = normal(900, 8), normal(5, 8, seed=1)
    visible = Visible(torch.tensor([0, 10, 300, 0, 700]), torch.tensor([900, 600, 310, 0, 900]))
    table = SharedKeys(keys, torch.arange(900.0) if recency else None)
    positions, weights = nearest(own, table, visible, 16)
    for row in range(5):
        start, stop = int(visible.start[row]), int(visible.stop[row])
        order = (keys[start:stop] @ own[row]).argsort(descending=True)[:16] + start
        count = len(order)
        assert positions[row, :count].tolist() == order.tolist()
        assert bool((positions[row, count:] == -1).all())
        squared = (keys[order] - own[row]).square().sum(1)
        expected = torch.exp(-squared / (2 * squared.mean())) if count else torch.zeros(0)
        assert torch.allclose(weights[row, :count], expected, atol=1e-5)
        assert bool((weights[row, count:] == 0).all())


def test_what_is_hidden_or_gone_is_nobodys_neighbour_and_ties_go_to_the_newest() -> None:
    keys = torch.ones(600, 4)
    visible = Visible(
        torch.zeros(2, dtype=torch.long),
        torch.full((2,), 600),
        hidden=torch.tensor([[599], [-1]]),
        gone=torch.tensor([597]),
    )
    positions, _ = nearest(torch.ones(2, 4), SharedKeys(keys), visible, 3)
    assert positions.tolist() == [[598, 596, 595], [599, 598, 596]]


def test_an_empty_history_has_no_neighbours() -> None:
    nothing = Visible(torch.zeros(3, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    positions, weights = nearest(normal(3, 4), SharedKeys(torch.empty(0, 4)), nothing, 2)
    assert positions.tolist() == [[-1, -1]] * 3
    assert weights.tolist() == [[0.0, 0.0]] * 3
    assert torch.allclose(vote(positions, weights, 2).exp(), torch.full((3, 2), 0.5))


def test_a_vote_counts_weights() -> None:
    answer = vote(torch.tensor([[0, 1, 1]]), torch.tensor([[2.0, 0.5, 0.5]]), 2).exp()
    assert torch.allclose(answer, torch.tensor([[2.5 / 4, 1.5 / 4]]))


def test_a_class_that_only_neighbours_have_gets_its_share_whatever_others_meet() -> None:
    labels, weights = torch.tensor([[0, 2, 2]]), torch.tensor([[1.0, 1.0, 1.0]])
    known = vote(labels, weights, 2)
    assert torch.allclose(known.exp(), torch.tensor([[0.75, 0.25]]))
    answer = with_new_classes(known, labels, weights, 3)
    assert torch.allclose(answer.exp(), torch.tensor([[0.375, 0.125, 0.5]]))
    wider = with_new_classes(known, labels, weights, 5)
    assert torch.equal(wider[:, :3], answer)
    assert bool((wider[:, 3:] == -torch.inf).all())
    assert torch.equal(with_new_classes(known, labels, weights, 2), known)


def plain_answers(batch: int, count: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """What was said of inputs and of items, and labels drawn as was said: nothing to correct."""
    logits = 2.0 * normal(batch, count + 1, classes)
    log_probs = F.log_softmax(logits, dim=-1)
    generator = torch.Generator().manual_seed(3)
    labels = torch.multinomial(log_probs.exp().flatten(0, 1), 1, generator=generator).view(batch, count + 1)
    return log_probs[:, 0], log_probs[:, 1:], labels[:, 1:]


def test_with_no_neighbour_the_plain_answer_stands() -> None:
    plain, of_items, labels = plain_answers(4, 8, 3)
    answer = corrected(plain, of_items, labels, torch.zeros(4, 8))
    assert torch.allclose(answer, plain, atol=1e-5)


def test_what_is_right_is_left_alone() -> None:
    plain, of_items, labels = plain_answers(16, 4000, 2)
    answer = corrected(plain, of_items, labels, torch.ones(16, 4000))
    assert float((answer.exp() - plain.exp()).abs().max()) < 0.05


def test_what_is_wrong_is_turned_round() -> None:
    plain, of_items, labels = plain_answers(16, 4000, 2)
    answer = corrected(plain, of_items, 1 - labels, torch.ones(16, 4000))
    assert float((answer.exp() - plain.exp().flip(1)).abs().max()) < 0.05


def test_a_correction_goes_no_farther_than_where_its_neighbours_lie() -> None:
    _, of_items, labels = plain_answers(1, 4000, 2)
    weights = torch.ones(1, 4000)
    near = torch.tensor([[0.6, 0.4]]).log()
    far, farther = (torch.tensor([[1 - rest, rest]]).log() for rest in (1e-4, 1e-9))
    assert torch.equal(*(corrected(own, of_items, labels, weights) for own in (far, farther)))
    centred = of_items[0] - of_items[0].mean(-1, keepdim=True)
    bound = torch.log_softmax(centred.mean(0) + APART * centred.std(0, correction=0) * torch.tensor([1.0, -1.0]), dim=0)
    torch.testing.assert_close(corrected(far, of_items, labels, weights)[0].exp(), bound.exp(), atol=0.03, rtol=0)
    torch.testing.assert_close(corrected(near, of_items, labels, weights).exp(), near.exp(), atol=0.03, rtol=0)


def test_where_the_plain_answers_tell_nothing_it_is_a_vote() -> None:
    plain, of_items, _ = plain_answers(8, 2000, 3)
    labels = torch.randint(3, (8, 2000), generator=torch.Generator().manual_seed(5)).clamp(max=1)
    answer = corrected(plain, of_items, labels, torch.ones(8, 2000)).exp()
    assert float((answer - torch.tensor([1 / 3, 2 / 3, 0.0])).abs().max()) < 0.06


def test_the_correction_is_the_minimum_of_its_loss() -> None:
    """By gradient descent on the same loss with autograd."""
    plain, of_items, labels = plain_answers(3, 40, 3)
    weights = torch.rand(3, 40, generator=torch.Generator().manual_seed(1))
    logits = (of_items - of_items.mean(-1, keepdim=True)).clamp(-6, 6)
    slope, offset = torch.ones(3, 1, requires_grad=True), torch.zeros(3, 3, requires_grad=True)
    optimizer = torch.optim.LBFGS([slope, offset], max_iter=200, tolerance_grad=1e-7)

    def closure() -> Tensor:
        optimizer.zero_grad()
        said = F.log_softmax(slope.unsqueeze(-1) * logits + offset.unsqueeze(1), dim=-1)
        nll = -(weights * said.gather(2, labels.unsqueeze(-1)).squeeze(-1)).sum()
        loss = nll + 0.5 * (slope - 1).square().sum() + 0.5 * offset.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    centred = (plain - plain.mean(-1, keepdim=True)).clamp(-6, 6)
    expected = F.log_softmax(slope * centred + offset, dim=-1)
    assert torch.allclose(corrected(plain, of_items, labels, weights), expected.detach(), atol=1e-3)


def test_a_correction_does_not_depend_on_when_others_are_found() -> None:
    plain, of_items, labels = plain_answers(6, 64, 3)
    labels[:3] = (labels[:3] + 1) % 3  # some take more steps than others
    weights = torch.rand(6, 64, generator=torch.Generator().manual_seed(1)) * torch.tensor([[0.0], [1], [9]] * 2)
    together = corrected(plain, of_items, labels, weights)
    for row in range(6):
        beside = [row] * 6
        alone = corrected(plain[beside], of_items[beside], labels[beside], weights[beside])
        assert torch.equal(alone[0], together[row])
