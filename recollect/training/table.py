"""From labelled rows of a table to a model that can be deployed: what `recollect train` does."""

from dataclasses import replace
from pathlib import Path

from recollect.config import recipe_named, with_model
from recollect.data.embedding import EmbedderSpec
from recollect.data.events import Events
from recollect.data.schema import TableSchema
from recollect.errors import SettingError
from recollect.evaluation.table_stream import prepare
from recollect.trained import Trained
from recollect.training.fit import fit, sizes_for
from recollect.training.progress import Display


def train_table(
    events: Events,
    schema: TableSchema,
    *,
    cutoff: int | float | None = None,
    retrieve: str = "items",
    embedder: str | EmbedderSpec | None = "wordllama",
    cache: Path,
    seed: int = 0,
    steps: int | None = None,
    like: Trained | None = None,
    display: Display,
) -> Trained:
    """Trained on what was known before the cutoff, or on everything without one; with `like`, with the intake, keys and
    first classes of that model, so that whatever history has its items fits this one too."""
    if like is not None and cutoff is not None:
        _check_words(like, cutoff)
    seen_as = None if like is None or like.intake is None else (like.intake, like.classes)
    embedder = embedder if seen_as is None else seen_as[0].embedder
    prepared = prepare(events, schema, cutoff=cutoff, bins=1, embedder=embedder, cache=cache, seen_as=seen_as)
    stream = prepared.stream
    sizes = sizes_for(len(stream.past))
    if steps is not None:
        sizes = replace(sizes, steps=steps, validate_every=max(1, min(sizes.validate_every, steps // 2)))
    recipe = with_model(recipe_named("default"), retrieve=retrieve)
    fitted = fit(
        stream,
        recipe,
        seed=seed,
        sizes=sizes,
        bar=display.bar("training", sizes.steps),
        keys=None if like is None else like.keys,
    )
    return replace(fitted.model, classes=prepared.classes[: stream.num_classes], intake=prepared.intake)


def _check_words(like: Trained, cutoff: int | float) -> None:
    """Columns and keys of a later model only look at rows; words also know labels, which nobody had at the cutoff."""
    if like.intake is not None and like.intake.words is not None and cutoff < like.trained_on.until:
        raise SettingError(
            "the model of --keys-of reads words by labels that became known after the cutoff: "
            "give a cutoff that is no earlier than its own, or train without --keys-of"
        )
