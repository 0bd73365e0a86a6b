"""What a person sees of a run: a bar with loss, retrieval entropy, mean age of what was retrieved and steps per second.

Several runs can share one display, a line each. On a terminal of 80 columns the loss, the speed and the time left have
to do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from recollect.console import plain_console
from recollect.training.step import StepResult

WIDE = 110
"""Columns of a terminal from which on everything is shown."""

LONGEST_NAME = 28


class StepBar:
    """One run's line on a display; refreshed at most some times a second, since a step may take a millisecond."""

    def __init__(self, display: "Display", name: str, steps: int) -> None:
        self.display, self.say = display.progress, display.say
        self.name, self.steps, self.wide = name, steps, display.wide
        self.task = self.display.add_task(name, total=steps, details="")

    def update(self, step: int, result: StepResult) -> None:
        task = self.display.tasks[self.display.task_ids.index(self.task)]
        nll, entropy = f"nll {float(result.nll):.3f}", f"entropy {float(result.entropy):.2f}"
        # What is retrieved was there before: an age of nothing is none.
        age = f"age {float(result.age):.3f}" if float(result.age) > 0 else ""
        speed = "" if task.speed is None else f"{task.speed:.1f} steps/s"
        shown = [part for part in (nll, entropy, age, speed) if part]
        details = " ".join(shown) if self.wide else f"{nll} {speed.replace(' steps', '')}"
        self.display.update(self.task, completed=step, details=details)
        if not self.display.console.is_terminal and step % max(1, self.steps // 10) == 0:
            self.say(", ".join([f"{self.name}: {step} of {self.steps} steps", *shown]))


class Display:
    """A live display of runs; plain lines of text where the output is no terminal."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or plain_console()
        self.wide = console.width >= WIDE
        name = Column(no_wrap=True, overflow="ellipsis", max_width=None if self.wide else LONGEST_NAME)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=name),
            BarColumn(bar_width=24 if self.wide else 8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[details]}"),
            TimeRemainingColumn(compact=not self.wide),
            console=console,
        )

    def __enter__(self) -> "Display":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def bar(self, name: str, steps: int) -> StepBar:
        return StepBar(self, name, steps)

    @contextmanager
    def rows(self, name: str, total: int) -> Iterator[Callable[..., None]]:
        """A bar for something that counts rows or fits: call what it gives with (done) or (done, total)."""
        if not self.progress.console.is_terminal:
            self.say(name)
        task = self.progress.add_task(name, total=total, details="")

        def advance(done: int, new_total: int | None = None) -> None:
            self.progress.update(task, completed=done, total=new_total or total)

        yield advance
        found = self.progress.tasks[self.progress.task_ids.index(task)]
        self.progress.update(task, completed=found.total)

    def say(self, line: str) -> None:
        """A line of text above the bars, there at once even if the output is a file."""
        self.progress.console.print(line)
        self.progress.console.file.flush()
