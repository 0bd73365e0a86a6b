"""Peak memory of a training step against K, B, kappa, d and D, measured and as `recollect plan` predicts it.

    python benchmarks/memory.py [--scale quick|default|paper]

Prints progress, and one JSON object as its last line: every point with its predicted and measured bytes and the
relative error of the prediction, the worst of these, and for each variable a straight line through the measurements
with its r2. `allocator_bytes` is what the process takes beyond that at the base point if glibc is left alone.
"""

import argparse
import json

import torch

from recollect.reproduction.memory import SWEEPS, sweep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", choices=sorted(SWEEPS), default="default")
    arguments = parser.parse_args()
    report = sweep(SWEEPS[arguments.scale], lambda line: print(line, flush=True))
    print(json.dumps({"scale": arguments.scale, "threads": torch.get_num_threads(), **report}))


if __name__ == "__main__":
    main()
