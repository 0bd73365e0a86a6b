"""What is printed of somebody's data is printed as it is."""

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from rich.table import Table

from recollect.console import plain_console

ODD = "price [/kg] [bold]x[/bold] :smile:"


def test_brackets_and_colons_are_no_styles() -> None:
    table = Table(ODD, title=ODD)
    table.add_row(ODD)
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        plain_console().print(ODD)
        plain_console(highlight=False).print(table)
        plain_console(stderr=True).print(ODD)
    assert out.getvalue().count(ODD) == 4
    assert err.getvalue().count(ODD) == 1
