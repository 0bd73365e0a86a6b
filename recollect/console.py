"""Where people are told things: names and texts in somebody's data are printed as they are, whatever is in brackets."""

from rich.console import Console


def plain_console(*, stderr: bool = False, highlight: bool = True) -> Console:
    """Takes no [bold] for a style, which would be left out, and no [/x] for the end of one, which would raise."""
    return Console(stderr=stderr, highlight=highlight, markup=False, emoji=False)
