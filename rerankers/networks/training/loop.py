"""The training loop: steps, validation after each epoch, early stopping; optimizers and losses;
judged pairs to train on, and those of each step, positives and sampled negatives.

Every random choice follows from the seed and the epoch or step alone. A model with fixed vectors
and filters compares a pair in the same way in every epoch: keeping the result (a few hundred
numbers) turns minutes of training into seconds.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tweetrerank.rerankers import devices
from tweetrerank.rerankers.model import Progress as PairProgress
from tweetrerank.rerankers.model import silent
from tweetrerank.rerankers.networks import network
from tweetrerank.rerankers.networks.base import Interactions, Reranker
from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.layers import ConvolutionTower
from tweetrerank.rerankers.networks.models.dssm import TrigramSums
from tweetrerank.rerankers.networks.ngrams import fast_path
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.pairs import lists_of
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.ragged import Rows

LARGE = 20_000
"""Rows of a table from which on plain gradient descent has sparse gradients: a step reads a few
thousand of them. Below about 10,000 dense ones are faster."""

VALIDATION_BATCHES = 8  # Batches of a validation loss

TopicRows = tuple[
    Rows, Rows
]  # Rows of one training topic's positives, and of its negatives

Measure = Callable[[npt.NDArray[np.float32]], float]
"""Scores [P] of the validation pairs -> a figure, higher is better."""

Progress = Callable[[int, int, str], object]
"""Called with the epoch, the step (0 at the end of the epoch) and a message."""


@dataclass(frozen=True)
class Examples:
    """Pairs with labels [P]."""

    pairs: Tokenized
    relevant: npt.NDArray[np.bool_]

    def topics(self) -> list[TopicRows]:
        """Topics with at least one positive and one negative: no others can be learned from."""
        lists = lists_of(self.pairs.query_index)
        topics = (
            (rows[self.relevant[rows]], rows[~self.relevant[rows]]) for rows in lists
        )
        return [(own, others) for own, others in topics if len(own) and len(others)]

    def steps_of_epoch(self, settings: Settings) -> int:
        """Steps an epoch of a training on all pairs, or on lists of all positives."""
        count, size = len(self.relevant), settings.batch_pairs
        if settings.sampling != "pairs":
            count = sum(len(positives) for positives, _ in self.topics())
            size = settings.batch_topics
        return settings.steps or -(-count // size)

    def take(self, rows: Rows) -> Self:
        """The examples ``rows`` alone."""
        return replace(self, pairs=self.pairs.take(rows), relevant=self.relevant[rows])


def compared_once(
    model: Reranker, pairs: Tokenized, progress: PairProgress = silent
) -> Tokenized:
    """The pairs with their interactions; ``progress`` is called with numbers of compared pairs."""
    batches, parts = network.batches_of(pairs, network.BATCH_SIZE), list[Interactions]()
    with network.evaluating(model), torch.no_grad():
        way = fast_path(model, pairs) or pairs
        for rows in batches:
            parts.append(way.compared(model, rows))
            progress(len(rows))
    known = dict[str, Tensor]()
    for name in parts[0]:
        most = max(part[name].shape[1] for part in parts)
        padded = [
            F.pad(each[name], (0, 0, 0, most - each[name].shape[1])) for each in parts
        ]
        known[name] = torch.cat(padded)
    return replace(pairs, known=known, places=np.argsort(np.concatenate(batches)))


@dataclass
class History:
    """Training so far."""

    epochs: list[dict[str, float]] = field(
        default_factory=list
    )  # Figures of each epoch
    best: int = 0  # Number of the best epoch, from 1; 0 before the first
    setbacks: int = (
        0  # Times that epochs without a better validation figure halved the rate
    )


def train(
    model: Reranker,
    training: Examples,
    validation: Examples | None,
    measure: Measure,
    settings: Settings,
    progress: Progress = lambda epoch, step, message: None,
) -> History:
    """Train in place; the weights of the best epoch remain, without validation those of the last.
    ``measure`` is applied to the scores of the validation pairs after each epoch. RerankerError if
    there is nothing to learn from, or a loss is not a number."""
    if not training.topics():
        raise RerankerError(
            "found no training topic with both a relevant and another post among its candidates"
        )
    by_lists = settings.select == "loss" and settings.sampling != "pairs"
    if settings.epochs and validation and by_lists and not validation.topics():
        raise RerankerError(
            "found no held-out topic with both a relevant and another post, so there is no "
            "validation loss to select by; select by map, or hold more topics out"
        )
    history, best, highest = History(), deepcopy(model.state_dict()), -np.inf
    for epoch, loss in enumerate(
        _epochs(model, training, settings, history, progress), start=1
    ):
        figures, merit = {"training_loss": loss}, np.inf
        if validation is not None:
            validated = _validated(model, validation, measure, settings)
            figures |= validated
            merit = next(iter(validated.values())) * (
                -1 if settings.select == "loss" else 1
            )
        history.epochs.append(figures)
        if merit > highest or validation is None or not history.best:
            history.best, highest, best = epoch, merit, deepcopy(model.state_dict())
        else:
            history.setbacks += (epoch - history.best) % settings.halve_after == 0
        progress(
            epoch,
            0,
            "  ".join(f"{name} {value:.4f}" for name, value in figures.items()),
        )
        if epoch - history.best >= settings.patience:
            break
    model.load_state_dict(best)
    if model.needs_fit:
        representations = network.represent_tokenized(model, training.pairs)
        model.fit(representations, torch.from_numpy(training.relevant))
    return history


def _epochs(
    model: Reranker,
    training: Examples,
    settings: Settings,
    history: History,
    progress: Progress,
) -> Iterator[float]:
    """Train epoch by epoch; the mean loss of each one's steps."""
    if not settings.epochs:
        return
    sampler, steps = BatchSampler(training, settings), training.steps_of_epoch(settings)
    optimizer = make_optimizer(model, settings)
    has_bfloat16 = devices.has_bfloat16(model.device_of().type)
    for module in model.modules():
        if isinstance(module, ConvolutionTower):
            module.precision = settings.precision if has_bfloat16 else "fp32"
    for epoch in range(1, settings.epochs + 1):
        sampler.start_epoch(model, epoch)
        rng = np.random.default_rng([settings.seed, epoch])
        torch.manual_seed(settings.seed * 1_000_003 + epoch)
        model.train()
        losses = []
        for step in range(steps):
            done = (epoch - 1) * steps + step
            left = 1.0 - 0.9 * done / (settings.epochs * steps)
            shares = {"linear": left, "plateau": 0.5**history.setbacks}
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * shares.get(
                    settings.schedule, 1.0
                )
            rows, positives = sampler.draw(done, rng)
            loss = _loss(model, sampler.examples, rows, positives, settings)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if settings.clipping:
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clipping)
            optimizer.step()
            losses.append(loss.item())
            if not np.isfinite(losses[-1]):
                raise RerankerError(
                    f"epoch {epoch}, step {step + 1}: the loss is {losses[-1]}; "
                    "train with a smaller `learning_rate`"
                )
            progress(epoch, step + 1, f"loss {losses[-1]:.3f}")
        yield float(np.mean(losses))


def make_optimizer(model: Reranker, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer of the settings, with each parameter's share of the weight decay."""
    momentum, is_sgd = settings.momentum, settings.optimizer == "sgd"
    # All but the product of rate and gradient would move every row.
    is_plain = is_sgd and not (momentum or settings.weight_decay or settings.clipping)
    for module in model.modules():
        if isinstance(module, nn.Embedding | TrigramSums):
            module.sparse = is_plain and len(module.weight) >= LARGE
    groups: list[dict[str, Any]] = []
    for name, parameter in model.named_parameters():
        share = next(
            (share for part, share in model.decay_shares.items() if part in name), 1.0
        )
        if parameter.requires_grad:
            groups.append(
                {"params": [parameter], "weight_decay": settings.weight_decay * share}
            )
    # One pass over weights and gradients, a third of the time; dense gradients only.
    sgd: dict[str, Any] = {
        "momentum": momentum,
        "nesterov": momentum > 0,
        "fused": not is_plain,
    }
    kinds: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
        "adamw": torch.optim.AdamW,
        "adadelta": partial(torch.optim.Adadelta, rho=0.95),
        "adagrad": torch.optim.Adagrad,
        "rmsprop": torch.optim.RMSprop,
        "sgd": partial(torch.optim.SGD, **sgd),
    }
    return kinds[settings.optimizer](groups, lr=settings.learning_rate)


def _validated(
    model: Reranker, validation: Examples, measure: Measure, settings: Settings
) -> dict[str, float]:
    """Figures of an epoch, the selecting one first."""
    scores, figures = (
        network.score_tokenized(model, validation.pairs),
        dict[str, float](),
    )
    if settings.select == "loss":
        if settings.sampling == "pairs":
            labels = torch.from_numpy(validation.relevant).float()
            loss = F.binary_cross_entropy_with_logits(
                torch.from_numpy(scores), labels
            ).item()
        else:
            loss = _validation_loss(model, validation, settings)
        figures["validation_loss"] = loss
    name = "validation_mrr" if settings.select == "mrr" else "validation_map"
    return figures | {name: measure(scores)}


def _loss(
    model: Reranker, examples: Examples, rows: Rows, positives: int, settings: Settings
) -> Tensor:
    """The loss over lists of pairs: ``rows`` [lists, candidates], positives first."""
    scores = examples.pairs.scores_of(model, rows.ravel())
    return LOSSES[settings.loss](scores.view(rows.shape), positives)


def _validation_loss(
    model: Reranker, validation: Examples, settings: Settings
) -> float:
    """Mean loss over lists that are the same after every epoch."""
    topics, count = validation.topics(), settings.positives
    sizes = settings.batch_topics, count, count * settings.negatives
    rng = np.random.default_rng([settings.seed, 0])
    lists = [random_lists(topics, *sizes, rng) for _ in range(VALIDATION_BATCHES)]
    model.eval()
    with torch.inference_mode():
        losses = [
            _loss(model, validation, rows, count, settings).item() for rows in lists
        ]
    return float(np.mean(losses))


Loss = Callable[[Tensor, int], Tensor]
"""Scores [lists, candidates] (logits), in each list a topic's positives before its negatives, and
the number of positives -> a loss."""


def pointwise(scores: Tensor, positives: int) -> Tensor:
    """Negative log likelihood of each pair's label (Rao et al. 2019, section 3.4)."""
    labels = torch.zeros_like(scores)
    labels[:, :positives] = 1.0
    return F.binary_cross_entropy_with_logits(scores, labels)


def pairwise(scores: Tensor, positives: int) -> Tensor:
    """Hinge loss of each positive against each negative: Rao et al. (2016), section 3.1."""
    differences = scores[:, :positives, None] - scores[:, None, positives:]
    return F.relu(1.0 - differences).mean()


def listwise(scores: Tensor, positives: int) -> Tensor:
    """Cross-entropy of each positive among its topic's negatives (Cao et al. 2007, top one). The
    other positives of the list are left out of the sum."""
    negatives = torch.logsumexp(scores[:, positives:], dim=1, keepdim=True)
    chosen = scores[:, :positives]
    return (torch.logaddexp(chosen, negatives) - chosen).mean()


LOSSES: Mapping[str, Loss] = {
    "listwise": listwise,
    "pairwise": pairwise,
    "pointwise": pointwise,
}


class BatchSampler:
    """Draws the pairs of each step, according to the settings' ``sampling``. Its ``examples``
    include corrupted pairs; RerankerError if there are no posts for these."""

    def __init__(self, training: Examples, settings: Settings) -> None:
        self.examples, self._topics, self._settings = (
            training,
            training.topics(),
            settings,
        )
        self._nearest: dict[int, Rows] = {}
        if settings.sampling == "corrupted":
            self._corrupt()

    def start_epoch(self, model: Reranker, epoch: int) -> None:
        """Mine negatives for ``max`` and ``mix`` with the last epoch's model; none in the first,
        counted from 1. RerankerError if FAISS is not installed."""
        if self._settings.sampling in ("max", "mix") and epoch > 1:
            vectors = network.represent_tokenized(model, self.examples.pairs)
            self._nearest = _nearest(vectors, self._topics, self._settings.negatives)

    def draw(self, step: int, rng: np.random.Generator) -> tuple[Rows, int]:
        """Rows [lists, candidates] of a step, positives first, and the positives of each list.
        Steps are counted from 0, over all epochs. Where there are mined negatives, all of a list
        are mined for ``max``, half of them (rounded up) for ``mix`` (Rao et al. 2016, 3.2)."""
        settings, count = self._settings, self._settings.positives
        if settings.sampling == "pairs":
            relevant = self.examples.relevant
            rows = self._shuffled(step, len(relevant), settings.batch_pairs)
            rows = np.concatenate([rows[relevant[rows]], rows[~relevant[rows]]])
            return rows[None], int(relevant[rows].sum())
        each = settings.negatives
        if settings.steps:
            lists = random_lists(
                self._topics, settings.batch_topics, count, count * each, rng
            )
        else:
            lists = self._next_lists(step, rng)
        mined = each if settings.sampling == "max" else -(-each // 2)
        for row in lists if self._nearest else ():
            blocks = row[count:].reshape(count, each)  # a view of the row
            for positive, block in zip(row[:count].tolist(), blocks, strict=True):
                # Repeated where the topic has fewer negatives.
                block[:mined] = np.resize(self._nearest[positive], mined)
        return lists, count

    def _next_lists(self, step: int, rng: np.random.Generator) -> Rows:
        """Lists of one step through shuffled passes over all positives (Rao et al. 2016, code)."""
        of_topics = [
            (row, others) for positives, others in self._topics for row in positives
        ]
        places = self._shuffled(step, len(of_topics), self._settings.batch_topics)
        chosen, size = (of_topics[place] for place in places), self._settings.negatives
        return np.stack(
            [np.append(row, rng.choice(others, size=size)) for row, others in chosen]
        )

    def _shuffled(self, step: int, count: int, size: int) -> Rows:
        """Numbers [size] of one step through shuffled passes over ``count`` of them."""
        first, start = divmod(step * size, count)
        seeds = (
            [self._settings.seed, first + n] for n in range(-(-(start + size) // count))
        )
        passes = [np.random.default_rng(seed).permutation(count) for seed in seeds]
        return np.concatenate(passes)[start : start + size]

    def _corrupt(self) -> None:
        """Add posts of other topics for each positive as its negatives (Qiu & Huang 2015, 5)."""
        pairs, seed = self.examples.pairs, self._settings.seed
        rng, count = np.random.default_rng([seed, 0]), len(pairs.query_index)
        rows = np.concatenate([np.append(*topic) for topic in self._topics])
        queries, posts, topics = (
            [pairs.query_index],
            [pairs.post_index],
            list[TopicRows](),
        )
        for positives, _ in self._topics:
            query, right = pairs.query_index[positives[0]], pairs.post_index[positives]
            others = pairs.post_index[rows[pairs.query_index[rows] != query]]
            others = others[~np.isin(others, right)]  # Topics may share posts.
            if not len(others):
                raise RerankerError(
                    "sampling corrupted takes negatives from other topics: found a topic without "
                    "others, or to which all of their posts are relevant; use the `sampling` random"
                )
            size = len(positives) * self._settings.negatives
            posts.append(rng.choice(others, size=size))
            queries.append(np.full(size, query))
            topics.append((positives, np.arange(count, count + size)))
            count += size
        old, prior = len(pairs.query_index), pairs.prior
        if prior is not None:  # The new ones are in no run.
            prior = np.append(prior, np.zeros(count - old, np.float32))
        indices = np.concatenate(queries), np.concatenate(posts)
        new = Tokenized(pairs.queries, pairs.posts, *indices, prior)
        relevant = np.append(self.examples.relevant, np.zeros(count - old, dtype=bool))
        self.examples, self._topics = Examples(new, relevant), topics


def random_lists(
    topics: list[TopicRows],
    lists: int,
    positives: int,
    negatives: int,
    rng: np.random.Generator,
) -> Rows:
    """Lists of random positives and negatives, of different topics where there are enough. All
    topics are equally likely, because average precision counts each topic once, however many
    positives it has. The result is [lists, positives + negatives] rows of pairs, positives
    first."""
    chosen = rng.choice(len(topics), size=lists, replace=lists > len(topics))
    rows = []
    for relevant, others in (topics[topic] for topic in chosen):
        own = rng.choice(relevant, size=positives)
        rows.append(np.append(own, rng.choice(others, size=negatives)))
    return np.stack(rows)


def _nearest(vectors: Tensor, topics: list[TopicRows], count: int) -> dict[int, Rows]:
    """Row of each positive -> rows of the ``count`` most similar negatives of its topic, by cosine.
    An exact search by FAISS among the vectors [P, K] of all pairs, on a GPU if it finds one."""
    try:
        import faiss
    except ImportError:
        raise RerankerError(
            "sampling max and mix search with FAISS, which is not installed; "
            "pip install 'tweetrerank[cpu]' (or [gpu], never both), or use the `sampling` random"
        ) from None
    unit, nearest = F.normalize(vectors.float(), dim=1).numpy(), dict[int, Rows]()
    search: Any = faiss.knn
    if getattr(faiss, "get_num_gpus", int)():
        search = partial(faiss.knn_gpu, faiss.StandardGpuResources())
    for positives, negatives in topics:
        texts = unit[positives], unit[negatives], min(count, len(negatives))
        _, closest = search(*texts, metric=faiss.METRIC_INNER_PRODUCT)
        nearest |= zip(positives.tolist(), negatives[closest], strict=True)
    return nearest
