"""What a person sees of a run."""

from io import StringIO

import torch
from rich.console import Console

from recollect.config import TrainSettings
from recollect.training.loop import Run, train
from recollect.training.progress import Display
from recollect.training.step import StepResult
from tests.tiny import make_objective, make_rows


def result(nll: float, entropy: float = 1.5, age: float = 0.25) -> StepResult:
    return StepResult(*(torch.tensor(value) for value in (0.0, nll, entropy, age)))


def console(*, terminal: bool = False, width: int = 140) -> Console:
    return Console(file=StringIO(), force_terminal=terminal, width=width)


def shown(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_bar_shows_loss_entropy_age_and_speed() -> None:
    out = console()
    with Display(out) as display:
        bar = display.bar("default seed 0", 20)
        for step in range(1, 8):
            bar.update(step, result(1.0 / step))
    text = shown(out)
    for part in ("default seed 0", "7/20", "nll 0.143", "entropy 1.50", "age 0.250", "steps/s"):
        assert part in text


def test_eighty_columns_have_room_for_the_loss_the_speed_and_the_time_left() -> None:
    out = console(width=80)
    with Display(out) as display:
        bar = display.bar("recollect, refit 10 of 12 0", 1500)
        for step in range(1, 20):
            bar.update(step, result(12.3456))
        with display.rows("recollect, seed 0: answering", 45312) as advance:
            advance(45312)
    lines = shown(out).splitlines()[-2:]
    for part in ("recollect, refit 10 of 12 0 ", " 19/1500 ", " nll 12.346 ", "/s "):
        assert part in lines[0]
    assert "recollect, seed 0: answering " in lines[1]
    assert "45312/45312" in lines[1]
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= 80


def test_before_the_first_step_the_numbers_are_blank() -> None:
    out = console()
    with Display(out) as display:
        display.bar("waiting", 20)
    assert "waiting" in shown(out)
    assert "nll" not in shown(out)


def test_where_there_is_no_terminal_each_run_is_one_plain_line() -> None:
    out = console()
    with Display(out) as display:
        first, second = display.bar("first", 3), display.bar("second", 3)
        for step in range(1, 4):
            first.update(step, result(0.5))
        second.update(1, result(0.7))
    lines = [line for line in shown(out).splitlines() if line.strip()]
    said, lines = lines[:4], lines[4:]
    assert said[0].startswith("first: 1 of 3 steps, nll 0.500, entropy 1.50, age 0.250")
    assert said[3].startswith("second: 1 of 3 steps, nll 0.700")
    assert len(lines) == 2
    assert "\x1b" not in shown(out)
    assert ("3/3" in lines[0], "nll 0.500" in lines[0]) == (True, True)
    assert ("1/3" in lines[1], "nll 0.700" in lines[1]) == (True, True)


def test_a_terminal_is_drawn_on() -> None:
    out = console(terminal=True)
    with Display(out) as display:
        display.bar("live", 2).update(1, result(0.5))
    assert "\x1b" in shown(out)


def test_a_display_ends_with_an_error_in_a_run() -> None:
    display = Display(console())
    try:
        with display:
            raise KeyError
    except KeyError:
        pass
    assert not display.progress.live.is_started


def test_a_display_without_a_console_writes_to_the_output() -> None:
    assert Display().progress.console.file is Console().file


def test_training_moves_the_bar() -> None:
    out = console()
    source = make_rows().between(30, 60)
    with Display(out) as display:
        run = Run(3, 4, bar=display.bar("training", 3))
        train(make_objective(), source, None, TrainSettings(), run)
    assert "3/3" in shown(out)


def test_a_line_can_be_said_above_the_bars() -> None:
    out = console()
    with Display(out) as display:
        display.bar("running", 3)
        display.say("solved at step 2")
    assert "solved at step 2" in shown(out).splitlines()
