"""What is counted, for Prometheus. In a registry of its own, so that two services in one process don't mix."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from recollect.deployed import Prediction

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
AGES = (0.01, 0.1, 1, 7, 30, 90, 365, 730, 1825, 3650)


class Metrics:
    media_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made: dict[str, Any] = {"registry": self.registry}
        self.requests = Histogram(
            "recollect_request_seconds", "Time to answer a request", ["route", "status"], buckets=SECONDS, **made
        )
        self.batches = Histogram(
            "recollect_batch_rows", "Inputs answered together", buckets=[1, 2, 4, 8, 16, 32, 64, 128, 256], **made
        )
        self.predictions = Counter("recollect_predictions", "Inputs answered", **made)
        self.labels = Counter("recollect_labels", "Labels that came for inputs answered before", ["right"], **made)
        self.accuracy = Gauge(
            "recollect_running_accuracy", "Of the last thousand answers whose labels came back to this process", **made
        )
        self.items = Counter("recollect_items_added", "Items made durable by this process", **made)
        self.visible_lag = Histogram(
            "recollect_visible_lag_seconds", "From being handed in to being seen by the model", buckets=SECONDS, **made
        )
        self.entropy = Histogram(
            "recollect_attention_entropy_nats",
            "How widely the attention over precedents is shared",
            buckets=(0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4),
            **made,
        )
        self.ages = Histogram(
            "recollect_precedent_age",
            "Age of all precedents of answers, in days or plain numbers",
            buckets=AGES,
            **made,
        )
        gauges = {
            "history_items": "Items of the history, less those erased, each corrected one once",
            "history_version": "Commits of the history",
            "unscored_items": "Items that don't count for the weights of the heads yet",
            "waiting_inputs": "Inputs waiting for an answer",
            "waiting_items": "Items waiting to be written",
            "inputs_lost": "Inputs that could not be kept",
            "is_writer": "1 if this process writes the history",
        }
        self.gauges = {name: Gauge(f"recollect_{name}", told, **made) for name, told in gauges.items()}
        self.accuracy.set(math.nan)
        self._recent: list[bool] = []

    def answered(self, predictions: Sequence[Prediction], entropies: Sequence[float], ages: Sequence[float]) -> None:
        self.predictions.inc(len(predictions))
        for entropy in entropies:
            self.entropy.observe(entropy)
        for age in ages:
            self.ages.observe(age)

    def labelled(self, right: Sequence[bool]) -> None:
        for each in right:
            self.labels.labels(str(each).lower()).inc()
        self._recent = [*self._recent, *right][-1000:]
        if self._recent:
            self.accuracy.set(sum(self._recent) / len(self._recent))

    def text(self, values: Mapping[str, float | int]) -> bytes:
        """All of it; `values` are those of the gauges at this moment."""
        for name, value in values.items():
            self.gauges[name].set(value)
        return generate_latest(self.registry)
