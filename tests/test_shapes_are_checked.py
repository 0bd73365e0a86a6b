"""The hook in conftest.py is at work: a shape that breaks a signature of recollect raises."""

import pytest
import torch
from jaxtyping import TypeCheckError

from recollect.records import Visible
from recollect.retrieval.scoring import block_positions


def test_a_record_whose_axes_disagree_raises() -> None:
    Visible(torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64))
    with pytest.raises(TypeCheckError, match="batch"):
        Visible(torch.zeros(2, dtype=torch.int64), torch.ones(3, dtype=torch.int64))


def test_a_function_given_the_wrong_kind_of_number_raises() -> None:
    assert block_positions(torch.tensor([1]), 2).tolist() == [[2, 3]]
    with pytest.raises(TypeCheckError, match="blocks"):
        block_positions(torch.tensor([1.0]), 2)
