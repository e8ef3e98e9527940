"""CNTN: convolutional sentence vectors that a tensor layer matches.

Xipeng Qiu and Xuanjing Huang: *Convolutional Neural Tensor Network Architecture for
Community-based Question Answering*, IJCAI 2015.

Two networks of wide convolutions and dynamic k-max pooling (Kalchbrenner et al. 2014), one for
questions and one for answers, turn each text into a vector of 50 numbers. A tensor layer scores
the two: s(q, a) = uᵀ f(v_qᵀ M v_a + V [v_q; v_a] + b), with r slices of M. The same vectors find
similar questions (``pipeline/archive.py``).

The five settings of section 6.2 are the configurations ``cntn_v`` (r = 5), ``cntn_iv`` (r = 1),
``cntn_iii`` (r = 1, M = 0), ``cntn_ii`` (r = 1, V = 0, b = 0, f = identity) and ``cntn_i`` (the
same, M = I).

Where the paper is silent, or where we differ:

* It sets k_top = n_s and also calls n_s the size of the sentence's vector, and does not say how
  many feature maps there are. Here the topmost pooling keeps the 4 highest values of each of 50
  feature maps, and a fully connected layer with tanh makes n_s = 50 numbers of these 200.
* A text may have fewer values than are to be kept; what is missing is 0 after the tanh. So is
  everything of a text without words, whose vector is the last layer's tanh(bias).
* Of equal values the earlier is kept: which of them is decides the order of what is kept.
* CNTN-I is called a cosine, which M = I is for vectors of length 1: there, and only there, v_q
  and v_a are normalised. u, which it does not mention, is a scale that starts at 1.
* In CNTN-III a question's answers are always in the same order, whatever the question is: tanh
  grows with V_a v_a. It is here for comparison.
* Word vectors are the pre-trained ones, left as they are; the paper trains vectors of 25 numbers
  on 300,000 pairs. A few thousand pairs would only teach which words were in them.
* Weights start from Xavier's uniform distribution and u at 1. The paper's ±0.01 lets three layers
  of tanh begin at vectors of almost zero.
* The learning rate is 0.003 in place of 0.1: Adagrad's first step changes every number by the
  whole rate, and from 0.01 on that drives the tanhs to their ends, where every text has the same
  vector and nothing is learned any more. L2 is the paper's; the margin γ, not given, is 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rerankers.base import WORDS, Inputs, Interactions, Reranker, require_choice
from rerankers.errors import RerankerError
from rerankers.layers.convolutions import WideConvolution
from rerankers.layers.embeddings import word_vectors
from rerankers.layers.pooling import k_max_pooling
from rerankers.text.vocabulary import Vocabulary
from rerankers.training.settings import Settings


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the defaults are CNTN-V with Table 2's sizes."""

    slices: int = 5  # r, slices of the tensor (section 6.2)
    bilinear: str = "tensor"
    """M: ``tensor`` (trained), ``identity`` (on vectors of length 1) or ``none`` (0)."""
    linear: bool = True  # Whether there are V and b
    activation: str = "tanh"  # f: ``tanh`` or ``identity``
    filters: int = 50  # F, feature maps of each convolution (not given)
    depth: int = 3  # d, convolutions with pooling (Table 2)
    width: int = 3  # m, words under a filter (Table 2)
    top_k: int = 4  # Values kept of each feature map after the last convolution (see above)
    sentence_size: int = 50  # n_s, numbers in a text's vector (Table 2)
    vectors: str = "static"
    """``static`` (pre-trained, left alone), ``nonstatic`` (trained further) or ``random``."""

    def __post_init__(self) -> None:
        require_choice("bilinear", self.bilinear, ("tensor", "identity", "none"))
        require_choice("activation", self.activation, ("tanh", "identity"))
        require_choice("vectors", self.vectors, ("static", "nonstatic", "random"))
        if self.bilinear == "none" and not self.linear:
            raise RerankerError(
                "settings bilinear and linear: found none and false, which leaves nothing to "
                "score by; expected at least one of them"
            )


_BILINEAR = Config(slices=1, linear=False, activation="identity")


class Model(Reranker):
    """The network of sections 3 and 4; see the module's docstring."""

    config_type = Config
    configurations: ClassVar[Mapping[str, Config]] = {
        "cntn_v": Config(),
        "cntn_iv": Config(slices=1),
        "cntn_iii": Config(slices=1, bilinear="none"),
        "cntn_ii": _BILINEAR,
        "cntn_i": Config(slices=1, bilinear="identity", linear=False, activation="identity"),
    }
    training_settings = Settings(
        loss="pairwise", margin=1.0, optimizer="adagrad", learning_rate=0.003, weight_decay=1e-4,
        sampling="corrupted", batch_topics=16, positives=1, negatives=10, steps=25, epochs=40,
        patience=10,
    )  # fmt: skip
    query_inputs = (WORDS,)
    post_inputs = (WORDS,)

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.config = config
        self.vectors = word_vectors(vocabulary, config.vectors, unknown=0.25)
        size = vocabulary.vectors.shape[1]
        self.query_sentence = SentenceNetwork(size, config)
        self.post_sentence = SentenceNetwork(size, config)
        slices, numbers = config.slices, config.sentence_size
        if config.bilinear == "tensor":
            bound = (3 / numbers) ** 0.5  # Xavier's, for each slice
            self.tensor = nn.Parameter(torch.empty(slices, numbers, numbers))
            nn.init.uniform_(self.tensor, -bound, bound)
        if config.linear:
            self.linear = nn.Linear(2 * numbers, slices)
            nn.init.xavier_uniform_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)
        self.weights = nn.Parameter(torch.ones(slices))

    def encode_queries(self, inputs: Inputs) -> Tensor:
        """Sentence vectors of Q questions: [Q, n_s]."""
        ids = inputs[WORDS].ids
        vectors: Tensor = self.query_sentence(self.vectors(ids), ids.ne(0).sum(dim=1))
        return vectors

    def encode_posts(self, inputs: Inputs) -> Tensor:
        """Sentence vectors of D answers: [D, n_s]."""
        ids = inputs[WORDS].ids
        vectors: Tensor = self.post_sentence(self.vectors(ids), ids.ne(0).sum(dim=1))
        return vectors

    def interact(self, queries: Tensor, posts: Tensor, query_of_post: Tensor) -> Interactions:
        """[v_q; v_a] of each pair."""
        return {"sentences": torch.cat([queries[query_of_post], posts], dim=1).unsqueeze(1)}

    def represent(self, interactions: Interactions) -> Tensor:
        """The tensor layer without u, one number a slice: [P, r] (equation 1)."""
        sentences = interactions["sentences"][:, 0]
        query, post = sentences.chunk(2, dim=1)
        total = torch.zeros((), device=sentences.device)
        if self.config.bilinear == "tensor":
            # [P, n_s] by [n_s, r · n_s]: v_qᵀ M of all slices in one product.
            # Autocast to bfloat16 knows nothing of this product.
            query, post = query.to(self.tensor.dtype), post.to(self.tensor.dtype)
            rows = torch.tensordot(query, self.tensor, dims=([1], [1]))  # [P, r, n_s]
            total = total + torch.bmm(rows, post.unsqueeze(2)).squeeze(2)
        elif self.config.bilinear == "identity":
            cosine = F.cosine_similarity(query, post, dim=1, eps=1e-6)
            total = total + cosine.unsqueeze(1)
        if self.config.linear:
            total = total + self.linear(sentences)
        return torch.tanh(total) if self.config.activation == "tanh" else total

    def head(self, representations: Tensor) -> Tensor:
        """uᵀ and the slices: [P]."""
        return (representations * self.weights).sum(dim=1)


class SentenceNetwork(nn.Module):
    """Words to a sentence vector by convolutions and dynamic k-max pooling (section 3).

    Args:
        size: E of the word vectors.
        config: the other sizes.
    """

    def __init__(self, size: int, config: Config) -> None:
        super().__init__()
        self.top_k = config.top_k
        sizes = [size] + [config.filters] * (config.depth - 1)
        self.convolutions = nn.ModuleList(
            WideConvolution(inputs, config.filters, config.width) for inputs in sizes
        )
        self.biases = nn.Parameter(torch.zeros(config.depth, config.filters))
        self.output = nn.Linear(config.top_k * config.filters, config.sentence_size)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, terms: Tensor, words: Tensor) -> Tensor:
        """Word vectors [B, L, E] of texts of ``words`` [B] words to sentence vectors [B, n_s]."""
        maps, lengths, depth = terms, words, len(self.convolutions)
        for layer, convolution in enumerate(self.convolutions, start=1):
            maps, lengths = convolution(maps, lengths)
            kept = dynamic_k(words, layer, depth, self.top_k)
            maps, lengths = k_max_pooling(maps, lengths, kept)
            inside = torch.arange(maps.shape[1], device=maps.device) < lengths.unsqueeze(1)
            maps = torch.tanh(maps + self.biases[layer - 1]) * inside.unsqueeze(2)
        # The topmost layer keeps top_k values whatever the text: [B, top_k, F].
        sentence: Tensor = torch.tanh(self.output(maps.flatten(1)))
        return sentence


def dynamic_k(words: Tensor, layer: int, depth: int, top_k: int) -> Tensor:
    """Values that pooling keeps after a layer, the first being 1, of texts of ``words`` [B] words.

    max(k_top, ⌈(d - l) / d · s⌉), Kalchbrenner et al. (2014), section 3.4, in whole numbers.
    """
    return torch.div((depth - layer) * words + depth - 1, depth, rounding_mode="floor").clamp_min(
        top_k
    )
