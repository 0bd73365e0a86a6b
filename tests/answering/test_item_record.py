"""What was computed of items, by stored row: room for more, what is asked again, and the way to another record."""

import torch

from recollect.answering.item_record import ItemRecord

CLASSES, HEADS, POOLED = 2, 4, 3


def filled(rows: int) -> ItemRecord:
    """Of the even rows everything is there, of the third what is said without context alone."""
    record = ItemRecord(classes=CLASSES, heads=HEADS, pooled=POOLED)
    record.make_room(rows)
    generator = torch.Generator().manual_seed(0)
    even = torch.arange(0, rows, 2)
    record.plain[even] = torch.randn(len(even), CLASSES, generator=generator)
    record.losses[even] = torch.rand(len(even), HEADS, generator=generator)
    record.told.keep(even, torch.randn(len(even), POOLED, CLASSES, generator=generator))
    record.plain[3] = 0.5
    return record


def test_room_for_more_leaves_what_is_there() -> None:
    record = filled(6)
    before = record.of(torch.arange(6))
    assert before["rows"].tolist() == [0, 2, 3, 4]
    assert before["told_rows"].tolist() == [0, 2, 4]
    record.make_room(40)
    assert len(record.plain) == len(record.losses) == len(record.told.there) >= 40
    after = record.of(torch.arange(40))
    assert all(torch.equal(after[name].nan_to_num(), before[name].nan_to_num()) for name in before)
    room = record.plain
    record.make_room(39)
    assert record.plain is room


def test_what_is_to_be_asked_again_keeps_what_is_said_without_context() -> None:
    record = filled(6)
    record.unscore(torch.tensor([2, 5]))
    assert record.of(torch.arange(6))["told_rows"].tolist() == [0, 4]
    assert bool(record.losses[2].isnan().all())
    assert not bool(record.plain[2].isnan().any())


def test_another_record_takes_it_over() -> None:
    record, other = filled(6), ItemRecord(classes=CLASSES, heads=HEADS, pooled=POOLED)
    other.make_room(10)
    kept = record.of(torch.arange(1, 6))
    other.take_over(kept)
    again = other.of(torch.arange(10))
    assert again["rows"].tolist() == [2, 3, 4]
    assert all(torch.equal(again[name].nan_to_num(), kept[name].nan_to_num()) for name in kept)
