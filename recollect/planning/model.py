"""Memory of the networks: weights, what each architecture keeps for its backward pass, and copies of fetched items.

Read off the forward passes in `recollect.model`, layer by layer, in floats; traces of real steps agree within a few
per cent. Knows nothing of retrieval. A tensor is kept if some layer's backward pass needs it.
"""

from dataclasses import dataclass
from itertools import pairwise

from recollect.planning.sizes import BYTES, Sizes

FLOAT = 4

ALIGNED = 16
"""Linear layers pad rows to a multiple of so many floats, and keep the padded copy: see `model.blocks.linear`."""

AGE_BANDS = 4
"""Of the Perceiver's age token: see `model.classifier`."""


@dataclass(frozen=True)
class ModelTerms:
    """Floats of one step. `state` and `queries` live from the start of the step to its end.

    Fetched items take `reading` while they are turned into what the first layer takes. Of that `shown` stays until
    the forward pass ends, and `read` until the first layer's backward pass. `activations` are all other kept tensors;
    `forward_extra` and `backward_extra` come on top of them at the worst moment of either pass. `passing` is what a
    forward pass takes that keeps nothing.
    """

    parameters: int
    largest_parameter: int
    state: int
    queries: int
    reading: int
    shown: int
    read: int
    activations: int
    forward_extra: int
    backward_extra: int
    passing: int


def model_terms(sizes: Sizes) -> ModelTerms:
    return {"precedents": _precedents, "perceiver": _perceiver, "mlp": _mlp}[sizes.model.architecture](sizes)


def linear_weights(*widths: int) -> int:
    """Of linear layers from each width to the next, biases included."""
    return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(widths))


def attention_weights(width: int) -> int:
    """Of one block: query, keys and values, output, an MLP four times as wide, three layer norms."""
    return 12 * width**2 + 15 * width


def reading_weights(width: int, heads: int) -> int:
    """Of a block in which one token reads many: queries and what is read as wide as all heads, an MLP, two norms."""
    return linear_weights(width, heads * width, width) + linear_weights(width, 4 * width, width) + 4 * width


def _padded(width: int) -> int:
    return -(-width // ALIGNED) * ALIGNED


def _if_padded(width: int) -> int:
    """Width of the padded copy that a linear layer makes, 0 where it makes none."""
    return _padded(width) if width % ALIGNED else 0


def _recency_weights(sizes: Sizes, state_width: int) -> int:
    return linear_weights(state_width, sizes.retrieved) if sizes.recency else 0


def _fetched(sizes: Sizes) -> int:
    return sizes.fetched * sizes.feature_width


def _converted(sizes: Sizes) -> int:
    """Fetched items together with the copy in their stored type, for the moment in which they become float32."""
    stored = BYTES[sizes.feature_type]
    return _fetched(sizes) * (FLOAT + (stored if stored < FLOAT else 0)) // FLOAT


def _precedents(sizes: Sizes) -> ModelTerms:
    model, features, shows = sizes.model, sizes.feature_width, sizes.shows_features
    width, queries = model.width, sizes.retrieved * sizes.key_dim
    parameters = [
        (features + 2 * width) * queries + features * 2 * width + sizes.retrieved,
        _recency_weights(sizes, features),
        linear_weights(features, width) + (sizes.classes + 1) * width,
        linear_weights(3, width, width) if model.ages else 0,
        linear_weights(width, width, width) if shows else 0,
        model.blocks * reading_weights(width, model.heads) + 5 * width,
        linear_weights(width, sizes.classes) + linear_weights(width, width) + linear_weights(width, 1),
    ]
    tokens = sizes.fetched * width
    # Of the items: blanked and normed; before, the hidden layers of age and difference, and the difference itself. Of
    # the one token that answers 12 widths per block and, for each head, its query and what it read.
    of_items = 2 + model.ages + 2 * shows
    of_rows = 3 + (12 + 2 * model.heads) * model.blocks
    return ModelTerms(
        parameters=sum(parameters),
        largest_parameter=max(features * queries, 2 * width * features),
        state=sizes.batch * (features + 4 * _if_padded(features)),
        queries=sizes.batch * (sizes.retrieved * sizes.query_width + 2 * width + 2 * queries),
        # Fetched, with empty slots blanked, in one flat vector, and padded.
        reading=3 * _fetched(sizes) + sizes.fetched * _if_padded(features) + 3 * tokens if shows else _converted(sizes),
        shown=_fetched(sizes) if shows else 0,
        read=sizes.fetched * _padded(features) if shows else 0,
        activations=tokens * of_items + sizes.rows * width * of_rows + sizes.fetched * ALIGNED * model.ages,
        forward_extra=tokens,
        backward_extra=2 * tokens + 2 * sizes.rows * width,
        passing=5 * tokens,
    )


def _stage(rows: int, latents: int, sources: int, width: int, blocks: int, masked: bool) -> int:
    """Kept by a Perceiver stage: 14 widths per latent and block, 3 more where latents attend to themselves."""
    return width * rows * (latents * (14 + 17 * blocks) + sources * (3 + masked))


def _perceiver(sizes: Sizes) -> ModelTerms:
    model, features, shows = sizes.model, sizes.feature_width, sizes.shows_features
    width, latents, blocks = model.width, model.latents, model.blocks
    tokens = shows + 1 + model.ages  # per slot: features, label, age
    stage = latents * width + (1 + blocks) * attention_weights(width) + 2 * width
    parameters = [
        linear_weights(features, width) + width,
        stage + linear_weights(width, sizes.retrieved * sizes.key_dim),
        _recency_weights(sizes, width),
        linear_weights(features, width) if shows else 0,
        (sizes.classes + 1) * width + (linear_weights(2 * AGE_BANDS + 1, width) if model.ages else 0),
        (tokens + sizes.retrieved) * width,
        stage + linear_weights(width, sizes.classes),
    ]
    in_latents = sizes.rows * latents * width
    in_tokens = sizes.rows * (1 + sizes.retrieved * tokens) * width
    return ModelTerms(
        parameters=sum(parameters),
        largest_parameter=max(features * width, 4 * width**2),
        state=sizes.batch * (width + _if_padded(features)),
        queries=sizes.queries * sizes.query_width + _stage(sizes.batch, latents, 1, width, blocks, masked=False),
        reading=2 * _fetched(sizes) + sizes.fetched * _if_padded(features) + 2 * in_tokens
        if shows
        else _converted(sizes) + 2 * in_tokens,
        shown=(_fetched(sizes) if shows else 0) + in_tokens,
        read=sizes.fetched * _padded(features) if shows else 0,
        activations=_stage(sizes.rows, latents, 1 + sizes.retrieved * tokens, width, blocks, masked=True),
        forward_extra=in_latents,
        backward_extra=5 * in_latents,
        passing=10 * in_latents,
    )


def _mlp(sizes: Sizes) -> ModelTerms:
    model, features, shows = sizes.model, sizes.feature_width, sizes.shows_features
    width, hidden = model.width, model.hidden
    slots = sizes.retrieved * (shows * features + sizes.classes + model.ages + 1)
    after_first = (*hidden, sizes.classes)[0]
    parameters = [
        linear_weights(features, width),
        linear_weights(width, *hidden, sizes.retrieved * sizes.key_dim),
        _recency_weights(sizes, width),
        linear_weights(width + slots, *hidden, sizes.classes),
    ]
    return ModelTerms(
        parameters=sum(parameters),
        largest_parameter=max((width + slots) * after_first, features * width),
        state=sizes.batch * (features + width + _if_padded(features)),
        queries=sizes.batch * sum(hidden) + sizes.queries * sizes.query_width,
        # Fetched, blanked, in one flat vector, and this once more with a mark for filled slots.
        reading=(2 * _fetched(sizes) if shows else _converted(sizes)) + 2 * sizes.rows * slots,
        shown=_fetched(sizes) if shows else 0,
        read=sizes.rows * _padded(slots),
        activations=sizes.batch * width + sizes.rows * sum(hidden),
        forward_extra=sizes.rows * after_first,
        # The first layer's weight is used in two parts, and each part's gradient is made as large as the whole.
        backward_extra=2 * (width + slots) * after_first,
        passing=2 * sizes.rows * after_first,
    )
