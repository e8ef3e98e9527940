"""Networks: models that PyTorch computes, and that score each post of a query alone.

Each distinct text is tokenized once. A batch has posts of one query, sorted by length
so that it has little padding. A model may declare a faster way to compute batches.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save

from tweetrerank.rerankers import devices
from tweetrerank.rerankers.explanation import Explanation
from tweetrerank.rerankers.model import (
    TUNING_FILE,
    VOCABULARY,
    WEIGHTS,
    Model,
    Progress,
    check_finite,
    silent,
)
from tweetrerank.rerankers.networks.base import Reranker
from tweetrerank.rerankers.networks.inputs import TextEncoder, Tokenized
from tweetrerank.rerankers.pairs import PRIOR, Pairs, lists_of
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.ragged import Rows
from tweetrerank.rerankers.text.vocabulary import Vocabulary

# Number of pairs in a batch. They keep two cores busy, and their matrices fit into the
# caches.
BATCH_SIZE = 256
SHARING = 4  # Factor of the batch size for a fast path, which shares work between pairs
# Factor of the batch size on a GPU, which needs thousands of pairs to be busy.
ON_DEVICE = 16


@dataclass(frozen=True, kw_only=True, repr=False)
class Network(Model):
    """A trained network and its vocabulary."""

    reads = "posts"

    model: Reranker  # In evaluation mode
    vocabulary: Vocabulary
    batch_size: int = BATCH_SIZE  # Pairs in a forward pass; see :func:`score_tokenized`

    @classmethod
    def of(
        cls,
        model: Reranker,
        weights: Mapping[str, Any],
        device: str,
        **fields: Any,
    ) -> Self:
        """Return a network with these weights on a device.

        ``fields`` are the remaining fields of the class. Raises RerankerError if the
        weights do not fit the hyperparameters.
        """
        devices.share_threads()
        tensors = {key: torch.from_numpy(value) for key, value in weights.items()}
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            lines = str(error).splitlines()[1:4]
            reasons = "; ".join(line.strip() for line in lines)
            raise RerankerError(
                f"{fields['directory'] / WEIGHTS}: the weights do not fit the model of "
                f"config.json: {reasons}"
            ) from None
        return cls(model=model.to(device).eval(), **fields)

    @cached_property
    def encoder(self) -> TextEncoder:
        """Encoder that turns texts into token identifiers."""
        return TextEncoder(self.vocabulary, self.idf)

    @property
    def families(self) -> Sequence[str]:
        """Feature families of ``rerankers/features`` that the network reads."""
        return (PRIOR,) if self.model.reads_prior else ()

    @property
    def device(self) -> str:
        """Type of the device that computes the network."""
        return self.model.device_of().type

    @property
    def explains(self) -> Literal["matches", "contributions", ""]:
        """``matches`` if the matches of query and post can be shown, else ""."""
        return "matches" if self.model.has_matches else ""

    def explain(self, pairs: Pairs, rows: Sequence[int]) -> Explanation | None:
        """Return the matches of query and posts, as in Table 6 of Rao et al. (2019)."""
        return self.model.explain(self.encoder, pairs, rows)

    def score(
        self,
        pairs: Pairs,
        progress: Progress = silent,
    ) -> npt.NDArray[np.float32]:
        """Return the scores [P]; see :class:`tweetrerank.rerankers.model.Model`."""
        pairs = pairs.with_resources(self.resources)
        tokenized = Tokenized.from_pairs(pairs, self.encoder, self.model)
        return score_tokenized(
            self.model,
            tokenized,
            self.batch_size,
            progress,
        )

    def tuned_weight(self) -> float:
        """Return the λ that ``tweetrerank tune`` stored with the checkpoint.

        Raises RerankerError if there is no λ, or if it was tuned for scores of another
        normalisation.
        """
        path = self.directory / TUNING_FILE
        try:
            tuning = json.loads(path.read_text(encoding="utf-8"))
            scale = tuning["normalization"]
            if scale != "minmax":
                raise ValueError(
                    f"found a λ for scores normalised by {scale}, expected minmax"
                )
            return float(tuning["weight"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RerankerError(
                f"{path}: found no tuned λ ({error!r}); give `weight`, the share of "
                "the model's score from 0 to 1"
            ) from None

    def files(self) -> Mapping[str, bytes]:
        """Return name -> content of the files: the vocabulary, and the weights.

        The weights include word vectors.
        """
        weights = {}
        for key, value in self.model.state_dict().items():
            weights[key] = value.cpu().contiguous().numpy()
        return {VOCABULARY: self.vocabulary.content(), WEIGHTS: save(weights)}


def score_tokenized(
    model: Reranker,
    pairs: Tokenized,
    batch_size: int = BATCH_SIZE,
    progress: Progress = silent,
) -> npt.NDArray[np.float32]:
    """Return the scores of all pairs, as [P]. Higher is better.

    Batches are :data:`ON_DEVICE` times larger on a GPU. ``progress`` is called with the
    number of pairs of each finished batch (on a GPU, of each started batch). Raises
    RerankerError if a score is not a finite number, or if there is too little memory
    for a batch.
    """
    count = len(pairs.query_index)
    results: list[torch.Tensor] = []
    is_on_host = model.device_of().type in devices.HOSTS
    with evaluating(model):
        fast_pairs = model.fast_path(pairs)
        is_fast = fast_pairs is not None
        if is_fast:
            size = _shared_batch_size(batch_size, count)
        elif is_on_host:
            size = batch_size
        else:
            size = ON_DEVICE * batch_size
        # A fast path needs no padding, so lengths are mixed to give batches of equal
        # duration.
        batches = batches_of(pairs, size, is_mixed=is_fast)
        score = partial(_score_batch, model, fast_pairs if is_fast else pairs)
        with _mapping(is_parallel=is_on_host and len(batches) > 1) as map_batches:
            for result in map_batches(score, batches):
                results.append(result)
                progress(len(result))
    scores = np.zeros(count, dtype=np.float32)
    if results:
        # Transfer all results from the device at once
        scores[np.concatenate(batches)] = torch.cat(results).cpu().numpy()
    check_finite(scores)
    return scores


def _shared_batch_size(batch_size: int, count: int) -> int:
    """Return the number of pairs in a batch of a fast path.

    Larger batches share more work, but there must be enough of them to keep all threads
    busy until the end.
    """
    for_threads = -(-count // (4 * devices.threads()))
    return min(SHARING * batch_size, max(batch_size, for_threads))


@contextmanager
def _mapping(is_parallel: bool) -> Iterator[Callable[..., Iterator[torch.Tensor]]]:
    """Yield a function like ``map`` that gives each batch a thread.

    A batch is too small to be computed by several threads. If not ``is_parallel``,
    yield ``map``.
    """
    if not is_parallel or devices.threads() == 1:
        yield map
        return
    with devices.one_thread_each() as threads, ThreadPoolExecutor(threads) as pool:
        yield pool.map  # If a batch raises an error, the remaining ones are cancelled


def _score_batch(model: Reranker, pairs: Tokenized, rows: Rows) -> torch.Tensor:
    try:
        with torch.inference_mode():  # Each thread has its mode.
            return pairs.scores_of(model, rows)
    except (MemoryError, RuntimeError) as error:
        if not _is_of_memory(error):
            raise
        raise RerankerError(
            f"found too little memory on {model.device_of()} for {len(rows)} pairs at "
            "once; use a smaller `batch_size` or fewer `threads`, or end other "
            "programs there"
        ) from None


def _is_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "DefaultCPUAllocator" in str(error)


@contextmanager
def evaluating(model: Reranker) -> Iterator[None]:
    """Put the model in evaluation mode, and cuDNN in full single precision.

    On a GPU, scores are then as precise as on a CPU. Both settings are restored at the
    end.
    """
    was_training = model.training
    allowed_tf32 = torch.backends.cudnn.allow_tf32
    model.eval()
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = allowed_tf32
        model.train(was_training)


def represent_tokenized(model: Reranker, pairs: Tokenized) -> torch.Tensor:
    """Return the input [P, K] of the model's head for each pair, on the CPU."""
    batches = batches_of(pairs, BATCH_SIZE)
    representations = []
    with evaluating(model), torch.inference_mode():
        for rows in batches:
            vectors = model.represent(pairs.interactions_of(model, rows))
            representations.append(vectors.float().cpu())
    order = np.argsort(np.concatenate(batches), kind="stable")
    # A copy made outside of inference mode can take part in later gradients.
    return torch.cat(representations)[torch.from_numpy(order)].clone()


def batches_of(
    pairs: Tokenized,
    batch_size: int,
    is_mixed: bool = False,
) -> list[Rows]:
    """Return the rows of each batch. A batch has pairs of one query.

    By default, the pairs of a batch have similar lengths, so that there is little
    padding. With ``is_mixed``, each batch has pairs of all lengths, so that all batches
    of a query are the same amount of work. Mixed batches start with the largest one.
    Later ones can then reuse its memory, and all threads end at about the same time.
    """
    lengths = pairs.lengths()
    batches: list[Rows] = []
    for rows in lists_of(pairs.query_index, lengths):
        count = -(-len(rows) // batch_size)
        if is_mixed:
            batches += [rows[start::count] for start in range(count)]
        else:
            batches += np.array_split(rows, count)
    if is_mixed:
        batches.sort(key=lambda rows: -int(lengths[rows].sum()))
    return batches
