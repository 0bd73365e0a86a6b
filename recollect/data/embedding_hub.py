"""Whether a model of the Hugging Face hub can be had at all: asked once, and before anything slow is imported.

The hub's own client asks for file after file, each for half a minute, before it gives up. `HF_HUB_OFFLINE`,
`HF_HUB_ETAG_TIMEOUT` (seconds) and the places of its cache are as the hub's packages have them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recollect.errors import SettingError

OWN_ORGANISATION = "sentence-transformers"
"""Whose models sentence-transformers loads by half a name."""

REMEDY = "name a folder, a model of the hub, minilm or wordllama"


def has_to_be_kept(name: str) -> bool:
    """Whether a model must come from the hub's cache on this machine, because the hub can't be reached.

    Refuses a name that is neither a folder nor one of the hub's, or that can't be had now.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if Path(name).is_dir():
        return False
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise SettingError(f"no embedder {name!r}: there is no such folder; {REMEDY}") from error
    if constants.HF_HUB_OFFLINE:
        reason = "HF_HUB_OFFLINE is set"
    elif not _hub_answers():
        reason = f"{constants.ENDPOINT} can't be reached"
    else:
        return False
    if _is_kept(name):
        return True
    raise SettingError(
        f"no embedder {name!r}: it is no folder, was not downloaded before, and {reason}; "
        "name a folder, minilm or wordllama, or download it first"
    )


@contextmanager
def without_hub() -> Iterator[None]:
    """Nothing is asked of the hub: `local_files_only` alone would not keep the tokenizer from it."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _hub_answers() -> bool:
    """Whatever it says is an answer."""
    import httpx
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (OSError, httpx.HTTPError):
        return False
    return True


def _is_kept(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    names = (name,) if "/" in name else (name, f"{OWN_ORGANISATION}/{name}")
    folder = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    return any(
        isinstance(try_to_load_from_cache(each, file, cache_dir=folder), str)
        for each in names
        for file in ("modules.json", "config.json")
    )
