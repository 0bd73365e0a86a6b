"""A Qwen3-Embedding of a few thousand random weights: left padding, an end token, last-token pooling, prompts."""

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

WORDS = ["the", "camera", "battery", "died", "after", "days", "great", "pictures", "Instruct", "review", "Query", ":"]
WIDTH = 32


def save_tiny_qwen(folder: Path, *, seed: int = 0) -> Path:
    """Saves the model as sentence-transformers saves Qwen3-Embedding, and returns its folder."""
    vocabulary = {word: number for number, word in enumerate(["<unk>", "<end>", *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 1)])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<end>", eos_token="<end>", padding_side="left"
    )
    wrapped.save_pretrained(folder / "bare")
    torch.manual_seed(seed)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        **heads,
        max_position_embeddings=64,
        pad_token_id=1,
        eos_token_id=1,
    )
    Qwen3Model(config).eval().save_pretrained(folder / "bare")
    modules = [Transformer(str(folder / "bare")), Pooling(WIDTH, pooling_mode="lasttoken"), Normalize()]
    model = SentenceTransformer(
        modules=modules, prompts={"query": "Instruct : review Query :", "document": ""}, device="cpu"
    )
    model.save(str(folder / "model"))
    return folder / "model"
