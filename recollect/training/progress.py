"""What a person sees of a run: a bar with loss, retrieval entropy, mean age of what was retrieved and steps per second.

Several runs can share one display, a line each.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recollect.training.step import StepResult


class StepBar:
    """One run's line on a display; refreshed at most some times a second, since a step may take a millisecond."""

    def __init__(self, display: "Display", name: str, steps: int) -> None:
        self.display, self.say = display.progress, display.say
        self.name, self.steps = name, steps
        self.task = self.display.add_task(name, total=steps, nll="", entropy="", age="", speed="")

    def update(self, step: int, result: StepResult) -> None:
        task = self.display.tasks[self.display.task_ids.index(self.task)]
        nll, entropy = f"nll {float(result.nll):.3f}", f"entropy {float(result.entropy):.2f}"
        age, speed = f"age {float(result.age):.3f}", "" if task.speed is None else f"{task.speed:.1f} steps/s"
        self.display.update(self.task, completed=step, nll=nll, entropy=entropy, age=age, speed=speed)
        if not self.display.console.is_terminal and step % max(1, self.steps // 10) == 0:
            self.say(f"{self.name}: {step} of {self.steps} steps, {nll}, {entropy}, {age}, {speed}")


class Display:
    """A live display of runs; plain lines of text where the output is no terminal."""

    def __init__(self, console: Console | None = None) -> None:
        fields = [TextColumn(f"{{task.fields[{name}]}}") for name in ("nll", "entropy", "age", "speed")]
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            *fields,
            TimeRemainingColumn(),
            console=console or Console(),
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
        task = self.progress.add_task(name, total=total, nll="", entropy="", age="", speed="")

        def advance(done: int, new_total: int | None = None) -> None:
            self.progress.update(task, completed=done, total=new_total or total)

        yield advance
        found = self.progress.tasks[self.progress.task_ids.index(task)]
        self.progress.update(task, completed=found.total)

    def say(self, line: str) -> None:
        """A line of text above the bars, there at once even if the output is a file."""
        self.progress.console.print(line)
        self.progress.console.file.flush()
