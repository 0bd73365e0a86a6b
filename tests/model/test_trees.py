"""Trees against going down each of them by hand; a row's answer is the same in any company."""

import pytest
import torch
from torch import Tensor

from recollect.model.trees import Trees, together
from recollect.records import FeatureSpec
from tests.tiny import seeded

SPECS = (FeatureSpec("x", "numeric", 3), FeatureSpec("shop", "categorical", 4))
DEPTH = 3


def make_trees(count: int, classes: int, seed: int = 0) -> Trees:
    generator = seeded(seed)
    nodes = (1 << DEPTH) - 1
    return Trees(
        SPECS,
        classes,
        torch.randint(7, (count, nodes), generator=generator),
        torch.randn(count, nodes, generator=generator),
        torch.randn(count, nodes + 1, generator=generator),
    )


def make_features(rows: int, seed: int = 1) -> dict[str, Tensor]:
    generator = seeded(seed)
    return {
        "x": torch.randn(rows, 3, generator=generator),
        "shop": torch.randint(5, (rows,), generator=generator),  # the last is a category outside the spec
    }


def by_hand(trees: Trees, features: dict[str, Tensor]) -> Tensor:
    """Row by row and tree by tree."""
    found = []
    for row in range(len(features["shop"])):
        shop = [float(features["shop"][row] == each) for each in range(4)]
        flat = [*features["x"][row].tolist(), *shop]
        sums = [0.0] * trees.num_classes
        for tree in range(len(trees.column)):
            node = 0
            while node < trees.column.shape[1]:
                right = flat[int(trees.column[tree, node])] > float(trees.threshold[tree, node])
                node = 2 * node + 1 + right
            of = 1 if trees.num_classes == 2 else tree % trees.num_classes
            sums[of] += float(trees.value[tree, node - trees.column.shape[1]])
        found.append(torch.tensor(sums).log_softmax(0))
    return torch.stack(found)


@pytest.mark.parametrize(("count", "classes"), [(1, 2), (5, 2), (3, 3), (51, 3)])
def test_every_row_goes_down_every_tree(count: int, classes: int) -> None:
    trees, features = make_trees(count, classes), make_features(9)
    assert torch.allclose(trees(features), by_hand(trees, features), atol=1e-5)


def test_a_value_at_the_threshold_goes_left() -> None:
    trees = Trees(SPECS[:1], 2, torch.zeros(1, 1, dtype=torch.long), torch.tensor([[0.5]]), torch.tensor([[-1.0, 1.0]]))
    said = trees({"x": torch.tensor([[0.5, 0, 0], [0.50001, 0, 0]])})
    assert said.argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize("classes", [2, 3])
def test_a_rows_bits_do_not_depend_on_its_place(classes: int) -> None:
    trees, features = make_trees(30, classes), make_features(32)
    said = trees(features)
    for shift in (1, 5, 31):
        order = torch.arange(shift, shift + 32) % 32
        assert torch.equal(trees({name: value[order] for name, value in features.items()}), said[order])


def test_together_is_the_mean_of_logits() -> None:
    one, other = torch.tensor([[0.0, 2.0]]).log_softmax(1), torch.tensor([[0.0, -1.0]]).log_softmax(1)
    assert torch.allclose(together(one, other), torch.tensor([[0.0, 0.5]]).log_softmax(1))
    assert torch.allclose(together(one, one), one)
