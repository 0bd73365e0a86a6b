"""What changes over a run as a function of progress: learning rate, temperature and fading bonuses."""

import math


def warmup_then_cosine(step: int, steps: int, *, warmup: float = 0.1, floor: float = 0.1) -> float:
    """Factor on the learning rate: linear over the first `warmup` of the steps, then a cosine down to `floor`."""
    warm = max(1, round(warmup * steps))
    if step < warm:
        return (step + 1) / warm
    progress = (step - warm) / max(1, steps - warm)
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def exponential(step: int, steps: int, first: float, last: float) -> float:
    """From `first` to `last` by equal ratios."""
    return float(first * (last / first) ** (step / max(1, steps - 1)))


def linear_to_zero(step: int, steps: int, first: float) -> float:
    """From `first` down to nothing at the end."""
    return first * (1.0 - step / max(1, steps))
