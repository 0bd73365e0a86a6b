"""What was handled without asking, or might mislead: told in a comparison's report for people to know.

Of the columns alone, after a training too.
"""

from collections.abc import Iterable

import numpy as np

from recollect.comparison.spans import rough_text, span_text
from recollect.console import plain_console
from recollect.data.columns import MISSING, absent, texts_of
from recollect.data.inference import GIVES_LABEL_AWAY, NOT_THE_IDS
from recollect.data.intake import Intake
from recollect.data.schema import TableSchema
from recollect.data.tables.raw import column_of
from recollect.evaluation.metrics import LogProbs
from recollect.evaluation.output import moment
from recollect.evaluation.stream import Stream
from recollect.evaluation.table_stream import Prepared
from recollect.records import MOST_CLASSES_OF_TERMS

AT_ONCE = "labels are known at once"
OWN_SIGNAL = "; that is a signal of its own"

MOSTLY = 0.9
"""Where one class has more of the rows than this, accuracy tells little."""

MANY_NEW = 0.1
"""Where more of the rows asked than this have a value of a column that nobody had met, it is told."""

FEW = 3
"""More classes that first come after the cutoff than these are told of together, in one line."""


def notes(prepared: Prepared, answers: LogProbs) -> list[str]:
    """Of the data, and of how our answers to the asked rows fared with classes that nobody was trained on."""
    stream = prepared.stream
    found = of_columns(prepared.intake) + _rare_and_new(prepared) + _missing(prepared)
    counts = np.bincount(stream.labels[stream.asked])
    if counts.max() > MOSTLY * counts.sum():
        found.append(
            f"{100 * counts.max() / counts.sum():.0f}% of the rows after the cutoff are of class "
            f"{prepared.classes[counts.argmax()]!r}: always answering it is right so often, so look at balanced "
            "accuracy, auc and nll too"
        )
    return found + _late_classes(prepared, answers)


def of_columns(intake: Intake) -> list[str]:
    """What was decided of columns, and nobody had said."""
    schema = intake.schema
    found = [f"column {name}: {why}" for name, why in schema.why.items() if why == GIVES_LABEL_AWAY]
    for name, why in schema.why.items():
        if why.endswith(NOT_THE_IDS.format(name=name)):
            found.append(f"column {name}: {why}")
    ignored = {name: why for name, why in schema.ignored.items() if why != "declared"}
    left_out = {**ignored, **intake.features.left_out}
    found += [f"column {name} is left out: {why}" for name, why in left_out.items()]
    for name in schema.text:
        if intake.words is None or name not in intake.words.columns:
            found.append(
                f"of {name} the embedding alone is read: its words, fitted to earlier labels, don't foretell later ones"
            )
    return found


def show(found: Iterable[str]) -> None:
    """On the screen, one line each."""
    console = plain_console()
    for note in found:
        console.print(f"  note: {note}", style="dim")


def _rare_and_new(prepared: Prepared) -> list[str]:
    stream, found = prepared.stream, []
    kept = {column.name: column for column in prepared.intake.features.categorical}
    for name in prepared.intake.schema.categorical:
        values = texts_of(column_of(prepared.events.columns, name))
        before, asked = values.gather(stream.past), values.gather(stream.asked)
        if name in kept and kept[name].shared:
            rare = int((~before.is_in(kept[name].categories)).sum())
            found.append(
                f"rare and unknown values of {name} share one place: {rare:,} of the {len(before):,} rows before the "
                "cutoff are of rare ones"
            )
        met = [*before.unique().to_list(), MISSING]  # what is missing is told of apart
        new = int((~asked.is_in(met)).sum()) / len(asked)
        if new > MANY_NEW:
            read = name in prepared.intake.valued and len(prepared.classes) <= MOST_CLASSES_OF_TERMS
            found.append(
                f"{100 * new:.0f}% of the rows after the cutoff have a value of {name} that was never met before it: "
                + (
                    "such values are told apart only by what is fitted to the newest labels"
                    if read
                    else f"with more than {MOST_CLASSES_OF_TERMS} classes nothing tells such values apart"
                )
            )
    return found


def _missing(prepared: Prepared) -> list[str]:
    features = prepared.intake.features
    unlearned = ", and never was before the cutoff: our network has not learned what that means"
    told = {column.name: OWN_SIGNAL if column.flagged else unlearned for column in features.numeric}
    told |= {column.name: OWN_SIGNAL if column.flagged else unlearned for column in features.embedded}
    for column in features.categorical:
        rare = "; that is read as a rare or unknown value" if column.shared else unlearned
        told[column.name] = OWN_SIGNAL if MISSING in column.categories else rare
    found = []
    for name in prepared.intake.schema.features:
        missing = absent(column_of(prepared.events.columns, name)).mean()
        if name not in told or not isinstance(missing, float) or missing == 0:
            continue
        share = f"{100 * missing:.0f}%" if missing >= 0.005 else "less than 1%"
        found.append(f"{share} of {name} is missing{told[name]}")
    return found


def _late_classes(prepared: Prepared, answers: LogProbs) -> list[str]:
    """Those of no row whose label was known before the cutoff: each by itself if they are few."""
    stream, classes = prepared.stream, prepared.classes
    late = range(stream.num_classes, len(classes))
    first = np.full(len(classes), stream.known_at.max())
    np.minimum.at(first, stream.labels, stream.known_at)
    labels = stream.labels[stream.asked]
    preceded = stream.time[stream.asked] > first[labels]
    right = answers.argmax(1) == labels
    if len(late) > FEW:
        theirs = labels >= stream.num_classes
        counts = np.bincount(labels[theirs], minlength=len(classes))
        told = [f"{classes[code]!r} ({counts[code]:,})" for code in np.argsort(-counts, kind="stable")[:FEW].tolist()]
        had = theirs & preceded
        return [
            f"{len(late):,} classes first come after the cutoff: {theirs.sum():,} of the {len(labels):,} rows asked "
            f"({100 * theirs.mean():.0f}%) are theirs; {had.sum():,} of these had a precedent, of which "
            f"{(had & right).sum():,} were answered right; the commonest are {', '.join(told)}"
        ]
    found = []
    for code in late:
        rows = labels == code
        had = rows & preceded
        fared = f"of {had.sum()} rows of it that had a precedent {(had & right).sum()} were answered right"
        if not had.any():
            fared = "no row of it that was asked had a precedent"
        since = moment(stream.time[np.flatnonzero(stream.labels == code)[0]])
        found.append(f"class {classes[code]!r} first comes after the cutoff ({since}); {fared}")
    return found


def window_note(stream: Stream, window: int | float, plain: bool) -> list[str]:
    """Peers that look back on a year have seen less where the data are young."""
    there = stream.cutoff - stream.time[0].item()
    if there >= window:
        return []
    return [
        f"the rows before the cutoff span {rough_text(there, plain)}, less than the {span_text(window, plain)} that "
        "refitted peers look back on: until there is more, these are fitted on everything"
    ]


def delay_text(stream: Stream, plain: bool) -> str:
    late = float(np.median(stream.known_at - stream.time))
    if late == 0:
        return AT_ONCE
    return f"labels are known {rough_text(late, plain)} later (median)"


def reasons(schema: TableSchema) -> dict[str, str]:
    """Why every column is used as it is, or isn't."""
    return {name: schema.ignored.get(name) or schema.why.get(name, "declared") for name in schema.roles()}
