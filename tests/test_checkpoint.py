"""What was written comes back bit for bit, or an error says what to do."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.checkpoint import STATE, TENSORS, Checkpoint, complete_checkpoints, read_checkpoint, write_checkpoint
from recollect.errors import CheckpointError

SHARED = torch.arange(3.0)
CHECKPOINT = Checkpoint(
    12,
    {
        "weights.a": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
        "weights.turned": torch.arange(6.0).view(2, 3).T,
        "weights.half": torch.tensor([1.5, math.nan, -math.inf], dtype=torch.bfloat16),
        "optimizer.0.step": torch.tensor(12.0),
        "count": torch.tensor([1, 2**40]),
        "nothing": torch.empty(0, 3),
        # One layer under two names, as where items are embedded by the layer that embeds inputs.
        "one": SHARED,
        "other": SHARED,
    },
    {"seed": 3, "best_loss": 0.1, "none": None, "nested": {"a": [1, 2.5, "x"]}},
)


def assert_same(left: Checkpoint, right: Checkpoint) -> None:
    assert (left.step, left.state) == (right.step, right.state)
    assert left.tensors.keys() == right.tensors.keys()
    for name, tensor in left.tensors.items():
        other = right.tensors[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape)
        assert torch.equal(tensor.contiguous().view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, CHECKPOINT)


def test_a_checkpoint_comes_back_bit_for_bit(written: Path) -> None:
    assert written.name == "step-00000012"
    assert_same(CHECKPOINT, read_checkpoint(written))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(step=st.integers(0, 10**8 - 1), state=st.dictionaries(st.text(), json_values, max_size=4))
def test_any_state_comes_back(tmp_path_factory: pytest.TempPathFactory, step: int, state: dict[str, object]) -> None:
    folder = tmp_path_factory.mktemp("any")
    checkpoint = Checkpoint(step, {"a": torch.ones(2)}, state)
    assert_same(checkpoint, read_checkpoint(write_checkpoint(folder, checkpoint)))


@settings(max_examples=40)
@given(data=st.data())
def test_a_damaged_bit_anywhere_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = write_checkpoint(tmp_path_factory.mktemp("damaged"), CHECKPOINT)
    file = path / data.draw(st.sampled_from([TENSORS, STATE]))
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"remove it and resume from the one before|use the version of recollect"):
        read_checkpoint(path)


@settings(max_examples=40)
@given(data=st.data())
def test_a_file_cut_short_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = write_checkpoint(tmp_path_factory.mktemp("cut"), CHECKPOINT)
    file = path / data.draw(st.sampled_from([TENSORS, STATE]))
    content = file.read_bytes()
    file.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(CheckpointError, match="remove it and resume from the one before"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", [TENSORS, STATE])
def test_a_missing_file_is_named_with_the_remedy(written: Path, name: str) -> None:
    (written / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}.*: remove it and resume from the one before") as raised:
        read_checkpoint(written)
    assert str(written) in str(raised.value)


@pytest.mark.parametrize("content", ["null", "3", "[1, 2]", '"x"'])
def test_json_of_another_kind_is_damage(written: Path, content: str) -> None:
    (written / STATE).write_text(content)
    with pytest.raises(CheckpointError, match=r"can't be read .*: remove it and resume from the one before"):
        read_checkpoint(written)


def test_an_unknown_format_asks_for_the_version_that_wrote_it(written: Path) -> None:
    state = json.loads((written / STATE).read_text())
    (written / STATE).write_text(json.dumps(state | {"format": 2}))
    with pytest.raises(CheckpointError, match="has format 2, this version reads 1: use the version of recollect that"):
        read_checkpoint(written)


def step_names(folder: Path) -> list[str]:
    return [path.name for path in complete_checkpoints(folder)]


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (1, 5, 20, 100):
        write_checkpoint(tmp_path, Checkpoint(step, {"a": torch.ones(1)}, {}))
    assert step_names(tmp_path) == ["step-00000020", "step-00000100"]
    assert len(list(tmp_path.iterdir())) == 2
    write_checkpoint(tmp_path, Checkpoint(101, {"a": torch.ones(1)}, {}), keep=1)
    assert step_names(tmp_path) == ["step-00000101"]


def test_a_step_written_twice_is_the_second(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        write_checkpoint(tmp_path, Checkpoint(3, {"a": torch.tensor(value)}, {}))
    assert read_checkpoint(tmp_path / "step-00000003").tensors["a"] == 2.0


def leave_files(folder: Path) -> None:
    folder.mkdir()
    (folder / TENSORS).write_bytes(b"half")


def leave_nothing(folder: Path) -> None:
    folder.mkdir()


@pytest.mark.parametrize("leave", [leave_files, leave_nothing])
def test_a_half_written_directory_is_ignored_and_then_replaced(tmp_path: Path, leave: Callable[[Path], None]) -> None:
    write_checkpoint(tmp_path, Checkpoint(1, {"a": torch.ones(1)}, {}))
    leave(tmp_path / ".step-00000002.tmp")
    assert step_names(tmp_path) == ["step-00000001"]
    write_checkpoint(tmp_path, Checkpoint(2, {"a": torch.ones(1)}, {}))
    assert step_names(tmp_path) == ["step-00000001", "step-00000002"]
    assert len(list(tmp_path.iterdir())) == 2
    read_checkpoint(tmp_path / "step-00000002")


def test_a_folder_that_is_not_there_has_no_checkpoints(tmp_path: Path) -> None:
    assert complete_checkpoints(tmp_path / "none") == []
