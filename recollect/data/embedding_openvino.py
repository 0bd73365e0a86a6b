"""A model of sentence-transformers with weights of 8 bits on the CPU: OpenVINO runs its transformer, NNCF rounds it.

Only the transformer is exchanged; tokenizer, prompt, pooling and truncation stay the model's own. Weights are rounded
once, and activations as they come where the processor multiplies 8-bit numbers (VNNI, AMX): nothing is measured on
texts beforehand, so a row depends on no text but its own. Rounding by ranges measured on other texts was tried, and
turned rows of short texts by up to 18 degrees.
"""

import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Activations are rounded in groups of so many, each with its own scale.
GROUP_SIZE = 32


class EightBitTransformer(nn.Module):
    """Stands where the transformer stood: takes its inputs by name and returns its last hidden state."""

    def __init__(self, transformer: Any, example: dict[str, Tensor]) -> None:
        super().__init__()
        import nncf
        import openvino

        self.config = transformer.config
        nncf.set_log_level(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tracing says that it traces
            converted = openvino.convert_model(transformer, example_input=example)
        rounded = nncf.compress_weights(converted, mode=nncf.CompressWeightsMode.INT8_SYM)
        options = {
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP_SIZE,
        }
        self._compiled = openvino.compile_model(rounded, "CPU", options)
        self._inputs = {port.get_any_name() for port in self._compiled.inputs}

    def forward(self, **features: Any) -> dict[str, Tensor]:
        given = {name: features[name].numpy() for name in self._inputs}
        return {"last_hidden_state": torch.from_numpy(self._compiled(given)[0])}


def run_in_eight_bits(model: "SentenceTransformer") -> None:
    """Exchange the transformer of a model that lies on the CPU."""
    first: Any = model[0]
    features = first.preprocess(["a text", "another one, and longer"])
    tensors = {name: value for name, value in features.items() if isinstance(value, Tensor)}
    first.model = EightBitTransformer(first.model, tensors)
