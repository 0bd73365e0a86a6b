"""The README's table of tables says what the whole tables in docs/reproduction.md say."""

import re

import pytest

from tests.docs.pages import ROOT

README = (ROOT / "README.md").read_text()
REPRODUCTION = (ROOT / "docs" / "reproduction.md").read_text()

SECTIONS = {
    "electricity, labels at once": ("Electricity, labels at once (", "accuracy"),
    "reviews whose rule changes in 2012": ("Cutoff 2012, ", "accuracy"),
    "the first quarter after that change": ("Cutoff 2012, ", "first period"),
    "reviews whose rule changes in 2014": ("Cutoff 2014, as in the paper;", "accuracy"),
    "accidents, season by season": ("Accidents, season by season, ", "accuracy"),
    "the rotating boundary as a table": ("The rotating boundary as a table: ", "accuracy"),
}
"""Where the table of each row of the README is, and which of its measures."""

MODELS = ("recollect_items", "logreg_frozen", "lightgbm_frozen", "logreg_refit_year", "lightgbm_refit_year")
SIMPLE = ("majority", "previous_label", "recent_neighbours")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split("|")]


def whole_table(start: str) -> dict[str, dict[str, str]]:
    """The first table behind a paragraph that starts like this: measures, without their deviations, by model."""
    (place,) = (match.start() for match in re.finditer(f"^{re.escape(start)}", REPRODUCTION, re.MULTILINE))
    lines = [line for line in REPRODUCTION[place:].split("![")[0].splitlines() if line.startswith("|")]
    names = cells(lines[0])
    return {
        row[0].strip("`"): {name: cell.split(" ±")[0] for name, cell in zip(names, row, strict=True)}
        for row in map(cells, lines[2:])
    }


def readme_rows() -> dict[str, list[str]]:
    start = README.index("| data | ours | ")
    return {row[0]: row[1:] for row in map(cells, README[start:].split("\n\n")[0].splitlines()[2:])}


def test_every_row_is_looked_at() -> None:
    assert list(readme_rows()) == list(SECTIONS)


@pytest.mark.parametrize("name", SECTIONS)
def test_the_readme_and_the_whole_tables_say_the_same(name: str) -> None:
    start, measure = SECTIONS[name]
    table, row = whole_table(start), readme_rows()[name]
    told = re.findall(r"\.\d{3}", " ".join(row[:3]))
    assert told == [table[model][measure] for model in MODELS]
    best = max(SIMPLE, key=lambda model: table[model][measure])
    assert re.findall(r"\.\d{3}", row[3]) == [table[best][measure]]
    assert best.replace("_", " ") in row[3]


def test_the_balanced_accuracies_below_it_are_those_of_the_tables() -> None:
    told = re.search(r"\((\.\d+) against (\.\d+) in 2012, (\.\d+) against (\.\d+) in 2014\)", README)
    assert told is not None
    tables = [whole_table(SECTIONS[f"reviews whose rule changes in {year}"][0]) for year in (2012, 2014)]
    models = ("recollect_items", "logreg_refit_year")
    assert list(told.groups()) == [table[model]["balanced"] for table in tables for model in models]
