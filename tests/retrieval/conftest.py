"""What all tests of retrieval share: the same random numbers on every run."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
