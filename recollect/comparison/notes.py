"""What was handled without asking, or might mislead: told in a comparison's report for people to know."""

import numpy as np

from recollect.comparison.spans import rough_text, span_text
from recollect.data.columns import MISSING, absent
from recollect.data.inference import GIVES_LABEL_AWAY, NOT_THE_IDS
from recollect.data.schema import TableSchema
from recollect.data.tables.raw import column_of
from recollect.evaluation.metrics import LogProbs
from recollect.evaluation.output import moment
from recollect.evaluation.stream import Stream
from recollect.evaluation.table_stream import Prepared

AT_ONCE = "labels are known at once"
OWN_SIGNAL = "; that is a signal of its own"

MOSTLY = 0.9
"""Where one class has more of the rows than this, accuracy tells little."""


def notes(prepared: Prepared, answers: LogProbs) -> list[str]:
    """Of the data, and of how our answers to the asked rows fared with classes that nobody was trained on."""
    stream, schema = prepared.stream, prepared.intake.schema
    found = [f"column {name}: {why}" for name, why in schema.why.items() if why == GIVES_LABEL_AWAY]
    for name, why in schema.why.items():
        if why.endswith(NOT_THE_IDS.format(name=name)):
            found.append(f"column {name}: {why}")
    ignored = {name: why for name, why in schema.ignored.items() if why != "declared"}
    left_out = {**ignored, **prepared.intake.features.left_out}
    found += [f"column {name} is left out: {why}" for name, why in left_out.items()]
    for column in prepared.intake.features.categorical:
        if column.shared:
            found.append(f"rare and unknown values of {column.name} share one place")
    found += _missing(prepared)
    words = prepared.intake.words
    for name in schema.text:
        if words is None or name not in words.columns:
            found.append(
                f"of {name} the embedding alone is read: its words, fitted to earlier labels, don't foretell later ones"
            )
    counts = np.bincount(stream.labels[stream.asked])
    if counts.max() > MOSTLY * counts.sum():
        found.append(
            f"{100 * counts.max() / counts.sum():.0f}% of the rows after the cutoff are of class "
            f"{prepared.classes[counts.argmax()]!r}: always answering it is right so often, so look at balanced "
            "accuracy, auc and nll too"
        )
    for code in range(stream.num_classes, len(prepared.classes)):
        found.append(_late_class(prepared, code, answers))
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


def _late_class(prepared: Prepared, code: int, answers: LogProbs) -> str:
    stream = prepared.stream
    rows = np.flatnonzero(stream.labels == code)
    preceded = (stream.labels == code) & (stream.time > stream.known_at[rows].min())
    right = (answers.argmax(1) == code)[preceded[stream.asked]]
    fared = f"of {len(right)} rows of it that had a precedent {int(right.sum())} were answered right"
    return (
        f"class {prepared.classes[code]!r} first comes after the cutoff ({moment(stream.time[rows[0]])}); "
        f"{fared if len(right) else 'it can be answered once it has precedents'}"
    )


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
