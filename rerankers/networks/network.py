"""Networks: models that PyTorch computes, which score each post of a query by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save

from rerankers.devices import share_threads
from rerankers.errors import RerankerError
from rerankers.networks.base import Reranker
from rerankers.networks.batches import BATCH_SIZE, score_tokenized
from rerankers.networks.inputs import TextEncoder, Tokenized
from rerankers.pairs import PRIOR, Pairs
from rerankers.reranker import TUNING_FILE, VOCABULARY, WEIGHTS, Model, Progress, silent
from rerankers.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from rerankers.explanation import Explanation


@dataclass(frozen=True, kw_only=True, repr=False)
class Network(Model):
    """A trained network with the words that it knows."""

    reads = "posts"

    model: Reranker
    """In evaluation mode."""
    vocabulary: Vocabulary
    batch_size: int = BATCH_SIZE
    """Pairs in a forward pass; see :func:`rerankers.networks.batches.score_tokenized`."""

    @classmethod
    def of(
        cls,
        kind: Any,
        weights: Mapping[str, npt.NDArray[Any]],
        device: torch.device | str,
        **known: Any,
    ) -> Self:
        """A network of the module ``kind`` on a device; ``known`` are the other fields.
        Raises RerankerError if the weights do not fit the hyperparameters."""
        share_threads()
        model = kind(known["config"], known["vocabulary"])
        try:
            model.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
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
    def reads_given(self) -> bool:
        """Whether it reads no more of a first stage than ranks."""
        return self.signals <= {PRIOR}

    @property
    def explains(self) -> Literal["matches", "contributions", ""]:
        """Matches of query and post, if they can be shown."""
        return "matches" if self.model.has_matches else ""

    def explain(self, pairs: Pairs, rows: Sequence[int]) -> Explanation | None:
        """Matches of query and posts, as in Table 6 of Rao et al. (2019)."""
        if not self.explains:
            return None
        from rerankers.networks.models._mp_hcnn_matches import explain

        return explain(self.model, self.encoder, pairs, rows)

    def score(self, pairs: Pairs, progress: Progress = silent) -> npt.NDArray[np.float32]:
        """Scores [P]; see :class:`rerankers.reranker.Model`."""
        pairs = pairs.with_resources(self.resources)
        tokenized = Tokenized.from_pairs(pairs, self.encoder, self.model)
        return score_tokenized(self.model, tokenized, self.batch_size, progress)

    def tuned_weight(self) -> float:
        """The λ that was tuned with the checkpoint, by ``tweetrerank tune``; RerankerError if
        there is none, or it is for scores of another normalisation."""
        path = self.directory / TUNING_FILE
        try:
            tuned = json.loads(path.read_text(encoding="utf-8"))
            share, normalization = float(tuned["weight"]), tuned["normalization"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RerankerError(
                f"{path}: found no tuned λ ({error!r}); give `weight`, the share of the model's "
                "score from 0 to 1"
            ) from None
        if normalization != "minmax":
            raise RerankerError(
                f"{path}: found a λ for scores normalised by {normalization}, expected minmax; "
                "give `weight`"
            )
        return share

    def files(self) -> Mapping[str, bytes]:
        """The words, and the weights with word vectors included."""
        state = self.model.state_dict().items()
        weights = {key: value.cpu().contiguous().numpy() for key, value in state}
        return {VOCABULARY: self.vocabulary.content(), WEIGHTS: save(weights)}
