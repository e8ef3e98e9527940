"""Networks: models that PyTorch computes, which score each post of a query by itself, in batches.

Each distinct text is tokenized once. A batch has posts of one query, sorted by length, so that it
has little padding; MP-HCNN takes its fast path on a CPU (:mod:`tweetrerank.rerankers.networks.ngrams`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
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
from tweetrerank.rerankers.networks.models._mp_hcnn_matches import explain
from tweetrerank.rerankers.networks.ngrams import fast_path
from tweetrerank.rerankers.pairs import PRIOR, Pairs, lists_of
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.ragged import Rows
from tweetrerank.rerankers.text.vocabulary import Vocabulary

BATCH_SIZE = 256  # Pairs: enough for two cores, and the matrices fit into their caches
SHARING = 4  # Batch size multiplier for a fast path, which shares work between pairs
ON_DEVICE = 16  # Batch size multiplier on a GPU, which thousands of pairs keep busy


@dataclass(frozen=True, kw_only=True, repr=False)
class Network(Model):
    """A trained network with the words that it knows."""

    reads = "posts"

    model: Reranker  # In evaluation mode
    vocabulary: Vocabulary
    batch_size: int = BATCH_SIZE  # Pairs in a forward pass; see :func:`score_tokenized`

    @classmethod
    def of(
        cls, model: Reranker, weights: Mapping[str, Any], device: str, **known: Any
    ) -> Self:
        """A network with these weights on a device; ``known`` are the other fields. Raises
        RerankerError if the weights do not fit the hyperparameters."""
        devices.share_threads()
        try:
            model.load_state_dict(
                {key: torch.from_numpy(value) for key, value in weights.items()}
            )
        except RuntimeError as error:
            reasons = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
            raise RerankerError(
                f"{known['directory'] / WEIGHTS}: the weights do not fit the model of config.json: "
                f"{reasons}"
            ) from None
        return cls(model=model.to(device).eval(), **known)

    @cached_property
    def encoder(self) -> TextEncoder:
        """Texts to token ids."""
        return TextEncoder(self.vocabulary, self.idf)

    @property
    def families(self) -> Sequence[str]:
        """Families of ``rerankers/features`` that it reads."""
        return (PRIOR,) if self.model.reads_prior else ()

    @property
    def device(self) -> str:
        """Type of the device that it computes on."""
        return self.model.device_of().type

    @property
    def explains(self) -> Literal["matches", "contributions", ""]:
        """Matches of query and post, if they can be shown."""
        return "matches" if self.model.has_matches else ""

    def explain(self, pairs: Pairs, rows: Sequence[int]) -> Explanation | None:
        """Matches of query and posts, as in Table 6 of Rao et al. (2019)."""
        return explain(self.model, self.encoder, pairs, rows) if self.explains else None

    def score(
        self, pairs: Pairs, progress: Progress = silent
    ) -> npt.NDArray[np.float32]:
        """Scores [P]; see :class:`tweetrerank.rerankers.model.Model`."""
        pairs = pairs.with_resources(self.resources)
        tokenized = Tokenized.from_pairs(pairs, self.encoder, self.model)
        return score_tokenized(self.model, tokenized, self.batch_size, progress)

    def tuned_weight(self) -> float:
        """The λ that was tuned with the checkpoint, by ``tweetrerank tune``; RerankerError if
        there is none, or it is for scores of another normalisation."""
        path = self.directory / TUNING_FILE
        try:
            tuned = json.loads(path.read_text(encoding="utf-8"))
            if (scale := tuned["normalization"]) != "minmax":
                raise ValueError(
                    f"found a λ for scores normalised by {scale}, expected minmax"
                )
            return float(tuned["weight"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RerankerError(
                f"{path}: found no tuned λ ({error!r}); give `weight`, the share of the model's "
                "score from 0 to 1"
            ) from None

    def files(self) -> Mapping[str, bytes]:
        """The words, and the weights with word vectors included."""
        state = self.model.state_dict().items()
        weights = {key: value.cpu().contiguous().numpy() for key, value in state}
        return {VOCABULARY: self.vocabulary.content(), WEIGHTS: save(weights)}


def score_tokenized(
    model: Reranker,
    pairs: Tokenized,
    batch_size: int = BATCH_SIZE,
    progress: Progress = silent,
) -> npt.NDArray[np.float32]:
    """Score all pairs: [P], higher is better; on a GPU by :data:`ON_DEVICE` times larger batches.
    ``progress`` is called with the pairs of each finished batch; on a GPU, of each that is begun.
    Raises RerankerError if a score is not a finite number, or a batch does not fit into memory."""
    count, on_host = len(pairs.query_index), model.device_of().type in devices.HOSTS
    size, found = (
        batch_size if on_host else ON_DEVICE * batch_size,
        list[torch.Tensor](),
    )
    with evaluating(model), ExitStack() as stack:
        if fast := fast_path(model, pairs):
            # Larger batches share more windows, but all threads need work until the end.
            size = min(
                SHARING * batch_size,
                max(batch_size, -(-count // (4 * devices.threads()))),
            )
        # A fast path needs no padding: mixed lengths give batches of equal duration.
        parts = batches_of(pairs, size, is_mixed=fast is not None)
        each: Any = map
        # A batch is too small for several threads.
        if on_host and devices.threads() > 1 and len(parts) > 1:
            pool = ThreadPoolExecutor(stack.enter_context(devices.one_thread_each()))
            each = stack.enter_context(pool).map  # Cancels what is left if one raises
        for values in each(partial(_scored, model, fast or pairs), parts):
            found.append(values)
            progress(len(values))
    scores = np.zeros(count, dtype=np.float32)
    if found:
        scores[np.concatenate(parts)] = torch.cat(found).cpu().numpy()  # One transfer
    check_finite(scores)
    return scores


def _scored(model: Reranker, pairs: Tokenized, rows: Rows) -> torch.Tensor:
    try:
        with torch.inference_mode():  # A state of each thread
            return pairs.scores_of(model, rows)
    except (MemoryError, RuntimeError) as error:
        of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not of_memory and "DefaultCPUAllocator" not in str(error):
            raise
        raise RerankerError(
            f"found too little memory on {model.device_of()} for {len(rows)} pairs at once; use a "
            "smaller `batch_size` or fewer `threads`, or end other programs there"
        ) from None


@contextmanager
def evaluating(model: Reranker) -> Iterator[None]:
    """Evaluation mode, and cuDNN in full single precision, as on a CPU."""
    training, is_coarse = model.training, torch.backends.cudnn.allow_tf32
    model.eval()
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = is_coarse
        model.train(training)


def represent_tokenized(model: Reranker, pairs: Tokenized) -> torch.Tensor:
    """Input [P, K] of the model's head for each pair, on the CPU."""
    order = batches_of(pairs, BATCH_SIZE)
    with evaluating(model), torch.inference_mode():
        parts = [
            model.represent(pairs.compared(model, rows)).float().cpu() for rows in order
        ]
    places = np.argsort(np.concatenate(order), kind="stable")
    # Outside of inference mode, a copy can take part in later gradients.
    return torch.cat(parts)[torch.from_numpy(places)].clone()


def batches_of(pairs: Tokenized, batch_size: int, is_mixed: bool = False) -> list[Rows]:
    """Rows of all pairs by batch: of one query, and of similar lengths against padding. Mixed
    batches have pairs of all lengths, so that those of a query are the same amount of work. They
    start with the largest: later ones reuse its memory, and threads end together."""
    lengths, parts = pairs.lengths(), list[Rows]()
    for rows in lists_of(pairs.query_index, lengths):
        count = -(-len(rows) // batch_size)
        if is_mixed:
            parts += [rows[start::count] for start in range(count)]
        else:
            parts += np.array_split(rows, count)
    if is_mixed:
        parts.sort(key=lambda rows: -int(lengths[rows].sum()))
    return parts
