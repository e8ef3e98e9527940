"""CNTN: convolutional sentence vectors and a tensor layer.

Xipeng Qiu and Xuanjing Huang: *Convolutional Neural Tensor Network Architecture for
Community-based Question Answering*, IJCAI 2015.

Two networks of wide convolutions and dynamic k-max pooling (Kalchbrenner et al. 2014),
one for questions and one for answers, encode each text as a vector of 50 dimensions. A
tensor layer scores the pair: s(q, a) = uᵀ f(v_qᵀ M v_a + V [v_q; v_a] + b), with r
slices of M. The question vectors also find similar questions
(``scripts/experiments/reports.py``).

The five settings of section 6.2 are the configurations ``cntn_v`` (r = 5), ``cntn_iv``
(r = 1), ``cntn_iii`` (r = 1, M = 0), ``cntn_ii`` (r = 1, V = 0, b = 0, f = identity)
and ``cntn_i`` (the same, M = I). Two competitors of section 6.1 differ by one layer
each: ``cnn_mlp`` scores the sentence vectors by a multi-layer perceptron, which is
equation 1 with M = 0 and a slice for each hidden unit. ``nbow_mlp`` also replaces the
convolutions by the mean of the word vectors.

Deviations, and choices where the paper is silent:

* The paper sets k_top = n_s, but n_s is also the size of the sentence vector, and the
  number of feature maps is not given. Here the last pooling keeps the 4 highest values
  of each of 50 feature maps, and a fully connected layer with tanh maps these 200
  values to n_s = 50.
* If a text has fewer values than the pooling keeps, zeros are added after the tanh. The
  vector of a text without words is tanh(bias) of the last layer.
* If values are equal, the earlier ones are kept. This determines their order.
* The paper calls CNTN-I a cosine, which M = I gives for vectors of length 1. So only
  CNTN-I normalises v_q and v_a. u, which is not mentioned there, is a scale with
  initial value 1.
* CNTN-III ranks answers in the same order for every question, since tanh is monotonic
  and V_a v_a does not depend on the question. It is included for comparison.
* The size of the perceptron is not given. Here it has one hidden layer of n_s = 50
  units. ``nbow_mlp`` has the mean of the word vectors instead of their sum, because
  with a sum long answers saturate tanh (AP .584 instead of .666 on TrecQA-raw's
  development part).
* Word vectors are pre-trained and fixed. The paper trains vectors of 25 dimensions on
  300,000 pairs, but a few thousand pairs would overfit them.
* Weights are initialised by Xavier's uniform distribution, and u by 1. With the paper's
  ±0.01, the sentence vectors after three layers of tanh would be almost zero. Only a
  tensor within a tanh starts with ±0.01. Otherwise v_qᵀ M v_a would be so large that
  tanh saturates and CNTN-IV does not learn: its RR among six answers of WikiQA's
  development part is .55, but .42 with Xavier's distribution (.636 and .635 for
  CNTN-V). CNTN-II, which has no tanh, is better with Xavier's distribution (.66 instead
  of .61).
* The learning rate is 0.003 instead of 0.1. The first step of Adagrad changes every
  parameter by the whole rate, and with rates from 0.01 on, the tanh units saturate, so
  that all texts have the same vector. L2 is that of the paper. The margin γ is not
  given, and is set to 1. ``nbow_mlp``, which has no tanh in its sentence vectors,
  learns best at 0.03: its RR among six answers of WikiQA's development part is .83, but
  .53 at 0.003 and .78 at 0.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tweetrerank.rerankers.networks.base import (
    QUERY,
    WORDS,
    Inputs,
    Interactions,
    Reranker,
)
from tweetrerank.rerankers.networks.layers.convolutions import WideConvolution
from tweetrerank.rerankers.networks.layers.perceptrons import xavier_linear
from tweetrerank.rerankers.networks.layers.positions import mask_of_lengths, pad_after
from tweetrerank.rerankers.networks.layers.term_vectors import word_vectors
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.settings import Checked, named, one_of
from tweetrerank.rerankers.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Config(Checked):
    """Hyperparameters; the defaults are CNTN-V with Table 2's sizes."""

    slices: int = 5  # r, slices of the tensor (section 6.2)
    bilinear: str = one_of("tensor", "identity", "none")
    """Form of M: ``tensor`` (trained), ``identity`` (vectors of length 1) or ``none``
    (0)."""
    linear: bool = True  # V and b (section 6.2)
    composition: str = one_of("convolutions", "mean")
    """How sentence vectors are made: by ``convolutions``, or as ``mean`` word vectors
    (n_s = E)."""
    activation: str = one_of("tanh", "identity")  # f
    filters: int = 50  # F, feature maps of each convolution (not given)
    depth: int = 3  # d, convolutions with pooling (Table 2)
    width: int = 3  # m, words under a filter (Table 2)
    top_k: int = 4  # Values of each feature map kept by the last pooling (see above)
    sentence_size: int = 50  # n_s, dimensions of a sentence vector (Table 2)

    def problems(self) -> Iterator[str]:
        """Yield a message for each impossible value and combination of values."""
        yield from super().problems()
        if self.bilinear == "none" and not self.linear:
            yield (
                "settings bilinear and linear: found none and false, which leaves "
                "nothing to score by; expected at least one of them"
            )


class Model(Reranker):
    """The network of sections 3 and 4; see the module's docstring."""

    configurations = named(
        cntn_v=Config(),
        cntn_iv=Config(slices=1),
        cntn_iii=Config(slices=1, bilinear="none"),
        cntn_ii=Config(slices=1, linear=False, activation="identity"),
        cntn_i=Config(
            slices=1,
            bilinear="identity",
            linear=False,
            activation="identity",
        ),
        cnn_mlp=Config(slices=50, bilinear="none"),
        nbow_mlp=Config(slices=50, bilinear="none", composition="mean"),
    )
    training_settings = Settings(
        loss="pairwise",
        optimizer="adagrad",
        learning_rate=0.003,
        weight_decay=1e-4,
        sampling="corrupted",
        batch_topics=16,
        positives=1,
        negatives=10,
        steps=25,
        epochs=40,
        patience=10,
    )
    configuration_settings = named(
        nbow_mlp=replace(training_settings, learning_rate=0.03)
    )

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        self.interactions_are_fixed = config.composition == "mean"
        self.vectors = word_vectors(vocabulary, "static", unknown=0.25)
        word_size = vocabulary.vectors.shape[1]
        size = word_size  # n_s
        if config.composition == "convolutions":
            size = config.sentence_size
            self.query_sentence = SentenceNetwork(word_size, config)
            self.post_sentence = SentenceNetwork(word_size, config)
        if config.bilinear == "tensor":
            bound = (3 / size) ** 0.5  # Xavier's
            if config.activation == "tanh":
                bound = 0.01
            self.tensor = nn.Parameter(torch.empty(config.slices, size, size))
            nn.init.uniform_(self.tensor, -bound, bound)
        if config.linear:
            self.linear = xavier_linear(2 * size, config.slices)
        self.weights = nn.Parameter(torch.ones(config.slices))

    def encode(self, inputs: Inputs, side: str) -> Tensor:
        """Return the sentence vectors of B questions or answers, [B, n_s]."""
        words = inputs[WORDS]
        terms = self.vectors(words.ids)
        if self.config.composition == "mean":  # Section 6.1, NBOW
            return terms.sum(dim=1) / words.lengths.clamp_min(1).unsqueeze(1)
        network = self.query_sentence if side == QUERY else self.post_sentence
        return network(terms, words.lengths)

    def interact(
        self,
        queries: Tensor,
        posts: Tensor,
        query_of_post: Tensor,
    ) -> Interactions:
        """Return [v_q; v_a] of each pair, [P, 1, 2 · n_s]."""
        sentences = torch.cat([queries[query_of_post], posts], dim=1)
        return {"sentences": sentences.unsqueeze(1)}

    def represent(self, interactions: Interactions) -> Tensor:
        """Return the tensor layer before u (equation 1), [P, r]."""
        sentences = interactions["sentences"][:, 0]
        query, post = sentences.chunk(2, dim=1)
        total = torch.zeros((), device=sentences.device)
        if self.config.bilinear == "tensor":
            # Compute v_qᵀ M of all slices in one product
            rows = torch.tensordot(query, self.tensor, dims=([1], [1]))  # [P, r, n_s]
            total = total + torch.bmm(rows, post.unsqueeze(2)).squeeze(2)
        elif self.config.bilinear == "identity":
            cosine = F.cosine_similarity(
                query,
                post,
                dim=1,
                eps=1e-6,
            )
            total = total + cosine.unsqueeze(1)
        if self.config.linear:
            total = total + self.linear(sentences)
        return torch.tanh(total) if self.config.activation == "tanh" else total

    def head(self, representations: Tensor) -> Tensor:
        """Return the sum of the slices, weighted by u, [P]."""
        return (representations * self.weights).sum(dim=1)


class SentenceNetwork(nn.Module):
    """Convolutions over word vectors with dynamic k-max pooling (section 3)."""

    def __init__(self, size: int, config: Config) -> None:
        super().__init__()
        self.top_k = config.top_k
        sizes = [size] + [config.filters] * (config.depth - 1)
        self.convolutions = nn.ModuleList(
            WideConvolution(inputs, config.filters, config.width) for inputs in sizes
        )
        self.biases = nn.Parameter(torch.zeros(config.depth, config.filters))
        self.output = xavier_linear(config.top_k * config.filters, config.sentence_size)

    def forward(self, terms: Tensor, words: Tensor) -> Tensor:
        """Turn word vectors [B, L, E] into sentence vectors [B, n_s].

        ``words`` [B] is the number of words of each text.
        """
        depth = len(self.convolutions)
        maps = terms
        lengths = words
        for layer, convolution in enumerate(self.convolutions, start=1):
            maps, lengths = convolution(maps, lengths)
            # k = max(k_top, ⌈(d - l) / d · s⌉), computed in integers (Kalchbrenner et
            # al. 2014, section 3.4), and the greatest k that is possible in the batch.
            k = ((depth - layer) * words + depth - 1) // depth
            most = -(-(depth - layer) * terms.shape[1] // depth)
            maps, lengths = k_max_pooling(
                maps,
                lengths,
                k.clamp_min(self.top_k),
                max(self.top_k, most),
            )
            inside = mask_of_lengths(lengths, maps.shape[1])
            maps = torch.tanh(maps + self.biases[layer - 1])
            maps = maps * inside.unsqueeze(2)
        # The last layer keeps top_k values of every text: [B, top_k, F].
        return torch.tanh(self.output(maps.flatten(1)))


def k_max_pooling(
    values: Tensor,
    lengths: Tensor,
    k: Tensor,
    most: int,
) -> tuple[Tensor, Tensor]:
    """Return the ``k`` [B] highest values of each feature, in text order.

    Ties keep the earlier value. ``values`` [B, L, F] belong to texts of ``lengths`` [B]
    without padding. Returns (values, counts). The values are [B, most, F], and 0 where
    a text has no more values. The counts [B] are the numbers of values of each text. No
    ``k`` may be above ``most``.
    """
    positions = values.shape[1]
    counts = torch.minimum(k, lengths)
    rows = values.transpose(1, 2)  # [B, F, L]
    places = torch.arange(positions, device=values.device)
    is_outside = (places >= lengths.unsqueeze(1)).unsqueeze(1)
    inside_only = rows.masked_fill(is_outside, -torch.inf)
    order = inside_only.argsort(dim=2, descending=True, stable=True)
    best = order[:, :, :most]  # [B, F, K]
    is_chosen = places[: best.shape[2]] < counts.unsqueeze(1)
    is_chosen = is_chosen.unsqueeze(1)  # [B, 1, K]
    # The other values are sorted to the end.
    best = best.masked_fill(~is_chosen, positions).sort(dim=2).values
    pooled = rows.gather(2, best.clamp(max=positions - 1)) * is_chosen
    missing = most - best.shape[2]
    return pad_after(pooled.transpose(1, 2), missing), counts
