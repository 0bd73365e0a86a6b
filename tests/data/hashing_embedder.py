"""An embedder without a model: rows drawn by the text alone, and a log of every text it was given.

Run as a program it embeds a column slowly, to be killed half-way: `python -m tests.data.hashing_embedder cache log`.
"""

import sys
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from recollect.data.embedding_cache import embed_column

TEXTS = [f"text {number % 150} " + "long " * (number % 150 % 7) for number in range(300)]


@dataclass
class HashingEmbedder:
    name: str = "some/where/hashing"
    width: int = 5
    fingerprint: str = "f1"
    batch: int = 4
    log: Path | None = None
    pause: float = 0.0
    batches: list[list[str]] = field(default_factory=list)

    @property
    def embedded(self) -> list[str]:
        return [text for texts in self.batches for text in texts]

    def embed(self, texts: list[str]) -> Float32[np.ndarray, "texts width"]:
        self.batches.append(texts)
        if self.log is not None:
            with self.log.open("a") as file:
                file.writelines(f"{text}\n" for text in texts)
        time.sleep(self.pause)
        generators = [np.random.default_rng(zlib.crc32(text.encode())) for text in texts]
        return np.stack([generator.standard_normal(self.width, np.float32) for generator in generators])


if __name__ == "__main__":
    embed_column(TEXTS, HashingEmbedder(log=Path(sys.argv[2]), pause=0.05), Path(sys.argv[1]))
