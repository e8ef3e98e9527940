"""Training of networks: held-out topics stop each part early, and the median epoch ends the last.

The last part, all topics, is trained for the median of the folds' best epochs.
"""

import dataclasses
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tweetrerank.pipeline.collections.collection import NO_FILE
from tweetrerank.pipeline.runtime import bar, step_bar
from tweetrerank.pipeline.training.training_set import (
    JudgedCandidates,
    Outcome,
    Plan,
    validated,
)
from tweetrerank.rerankers import devices, registry
from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.network import Network, score_tokenized
from tweetrerank.rerankers.networks.training.examples import Examples, compared_once
from tweetrerank.rerankers.networks.training.loop import train as train_loop
from tweetrerank.rerankers.networks.training.settings import Settings
from tweetrerank.rerankers.text.ragged import Rows
from tweetrerank.rerankers.text.spaces import general_vectors
from tweetrerank.rerankers.text.vectors import read_vectors
from tweetrerank.rerankers.text.vocabulary import Vocabulary

Floats = npt.NDArray[np.float32]


def train(plan: Plan, vectors: Path, device: str) -> Outcome:
    """Train a network; ``vectors`` is a file of word vectors, or ``NO_FILE``."""
    data, texts, settings = plan.data.training, plan.data.texts, plan.settings
    read = general_vectors(texts) if vectors == NO_FILE else read_vectors(vectors)
    # Words of a single post are matched like unknown words; their vectors need not ship.
    minimum, tokens = (
        1 if plan.data.development else 2,
        getattr(plan.config, "tokens", "words"),
    )
    vocabulary = Vocabulary.build(texts, read, minimum, tokens=tokens)

    def build() -> Network:  # The same at every call
        devices.share_threads()
        torch.manual_seed(settings.seed)
        model = registry.find(plan.model)(plan.config, vocabulary).to(device)
        of_plan: Any = {"name": plan.model, "config": plan.config, "idf": plan.idf}
        return Network(model=model, vocabulary=vocabulary, **of_plan)

    examples = _examples(build(), data, settings)
    best: list[int] = []
    record: dict[str, Any] = {
        "vectors": vectors.name,
        "training": dataclasses.asdict(settings),
    }
    record |= {"epochs": 0, "histories": {}}

    def fit(
        part: str, rows: Rows, known: JudgedCandidates, others: Rows
    ) -> tuple[Network, Floats]:
        network, judged, how = build(), None, settings
        part_of = (
            examples if len(rows) == len(examples.relevant) else examples.take(rows)
        )
        if known is not data:
            judged = _examples(network, known, settings)
        elif len(others):
            judged = examples.take(others)
        else:
            how = dataclasses.replace(settings, epochs=record["epochs"])

        def measure(scores: Floats) -> float:
            name = "RR" if settings.select == "mrr" else "AP"
            return known.mean_of(name, known.run_of(others, scores))

        report = partial(progress, part)
        history = train_loop(network.model, part_of, judged, measure, how, report)
        record["histories"][part] = history.epochs
        if judged is None:
            return network, np.zeros(0, np.float32)
        best.append(history.best)
        record["epochs"] = round(statistics.median(best))
        return network, score_tokenized(network.model, judged.pairs)

    with step_bar(examples.steps_of_epoch(settings)) as progress:
        return validated(plan, record, fit)


def _examples(network: Network, data: JudgedCandidates, settings: Settings) -> Examples:
    """The judged candidates as the network reads them."""
    model = network.model
    pairs = Tokenized.from_pairs(data.candidates.pairs(), network.encoder, model)
    # Corrupted pairs are made during training, so they cannot be compared beforehand.
    if model.interactions_are_fixed and settings.sampling != "corrupted":
        with bar(len(pairs.query_index), "comparing", "pair") as progress:
            pairs = compared_once(model, pairs, progress)
    return Examples(pairs, data.relevant())
