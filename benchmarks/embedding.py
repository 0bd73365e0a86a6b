"""How fast a column of texts is embedded: ours beside sentence-transformers' own `encode`, OpenVINO and WordLlama.

    python benchmarks/embedding.py [--texts 600] [--repeats 3]

Both embed the same made-up reviews of varied length with all-MiniLM-L6-v2, in turns, so that a busy moment of the
machine falls on both alike; `ratio` is the median over the turns. Ours writes every batch to a new cache on disk.
Where recollect[openvino] is installed, so does MiniLM in 8 bits: how many times as fast as ours, and how near its rows
are to the usual ones (cosine: the mean and the least).
Prints progress, and one JSON object as its last line.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from recollect.data.embedding import Embedder, EmbedderSpec, load_embedder
from recollect.data.embedding_cache import embed_column

WORDS = [
    *["the", "a", "of", "and", "to", "in", "it", "this", "camera", "battery", "laptop", "screen", "picture", "lens"],
    *["after", "two", "days", "weeks", "price", "works", "great", "poor", "bought", "returned", "again", "quality"],
    *["would", "recommend", "easy", "slow", "fast", "never", "charge", "cable", "really", "because", "support", "zoom"],
]


def make_reviews(count: int, generator: np.random.Generator) -> list[str]:
    """Half of them under 85 words, some over 250: like reviews of electronics."""
    lengths = np.clip(generator.lognormal(np.log(85), 0.8, count), 3, 400).astype(int)
    return [f"Number {number}. " + " ".join(generator.choice(WORDS, length)) for number, length in enumerate(lengths)]


def rate(texts: list[str], embed: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    embed()
    return len(texts) / (time.perf_counter() - begin)


def by_us(texts: list[str], embedder: Embedder) -> np.ndarray[Any, Any]:
    with tempfile.TemporaryDirectory() as cache:
        return embed_column(texts, embedder, Path(cache), progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    texts = make_reviews(arguments.texts, np.random.default_rng(0))
    minilm, wordllama = load_embedder("minilm"), load_embedder("wordllama")
    rounded = load_embedder(EmbedderSpec("minilm", backend="openvino")) if find_spec("nncf") else None
    theirs: SentenceTransformer = minilm._model  # type: ignore[attr-defined]  # the same weights, warmed alike
    for embed in (
        lambda: by_us(texts[:32], minilm),
        lambda: theirs.encode(texts[:32]),
        lambda: by_us(texts, wordllama),
        lambda: rounded and by_us(texts[:32], rounded),
    ):
        embed()
    ours, encode, fast, eight_bits = [], [], [], []
    for repeat in range(arguments.repeats):
        ours.append(rate(texts, lambda: by_us(texts, minilm)))
        encode.append(rate(texts, lambda: theirs.encode(texts, batch_size=minilm.batch, normalize_embeddings=True)))
        fast.append(rate(texts, lambda: by_us(texts, wordllama)))
        if rounded is not None:
            eight_bits.append(rate(texts, partial(by_us, texts, rounded)))
        shown = f"ours {ours[-1]:.1f}, encode {encode[-1]:.1f}, wordllama {fast[-1]:.0f} texts/s"
        print(f"{repeat + 1} of {arguments.repeats}: {shown}", flush=True)
    report = {
        "ours_texts_per_s": statistics.median(ours),
        "encode_texts_per_s": statistics.median(encode),
        "ratio": statistics.median(one / other for one, other in zip(ours, encode, strict=True)),
        "wordllama_texts_per_s": statistics.median(fast),
    }
    if rounded is not None:
        cosines = (by_us(texts, rounded) * by_us(texts, minilm)).sum(1)
        report |= {
            "openvino_texts_per_s": statistics.median(eight_bits),
            "openvino_times_ours": statistics.median(one / other for one, other in zip(eight_bits, ours, strict=True)),
            "openvino_cosine_mean": float(cosines.mean()),
            "openvino_cosine_least": float(cosines.min()),
        }
    print(json.dumps({"texts": len(texts), "threads": torch.get_num_threads(), **report}))


if __name__ == "__main__":
    main()
