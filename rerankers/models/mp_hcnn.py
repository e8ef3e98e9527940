"""MP-HCNN: multi-perspective relevance matching with hierarchical convolutions.

Jinfeng Rao, Wei Yang, Yuhao Zhang, Ferhan Ture and Jimmy Lin: *Multi-Perspective Relevance
Matching with Hierarchical ConvNets for Social Media Search*, AAAI 2019.

Stacked convolutions, shared by query and post, turn words and character trigrams into phrases of
growing length. At every depth each query phrase is compared with all phrases of the post and of
its URL, and the strongest and the mean match are kept. A small network weighs this evidence,
which inverse document frequency scales, into one score.

Two configurations have names:

``paper``
    Section 3 as printed: dot products, softmax over the post's positions, one feature for each
    query position and depth, everything trained. Where the paper is silent or contradicts itself:

    * A fixed-size matrix is imitated exactly instead of computed: positions past a text's end are
      zero at every depth, so their similarity is 0 and each adds e⁰ to the softmax's denominator.
      (Mean pooling over a softmax of the post's own positions alone would be a constant.)
    * The weight of a phrase is the mean IDF of its words; a trigram has its word's IDF. Counts of
      phrases and trigrams in 243 million posts are not to be had.
    * "The first two layers" that carry weights are counted from the embedding layer on.
    * Softmax over two classes is the sigmoid of the difference of their logits: one logit.

``robust`` (the default)
    What generalises from a hundred topics, chosen by cross-validation on training topics:

    * Cosine in place of dot product and softmax: rare and unknown words have short vectors, and
      their exact matches, the best evidence there is, would drown.
    * Word vectors, trigram vectors and convolutional filters stay as initialised (pre-trained,
      random, random). A random projection keeps the similarity of phrases; trained filters
      remember the training topics within an epoch.
    * The same small network reads every query position (its matches at all depths, and its IDF),
      and the results are averaged by IDF, so what is learned of one position serves all.
    * Two convolutional layers in place of four: with fixed filters longer phrases added nothing.
    * One fact of the post alone joins the evidence: whether it has a URL.

    The word vectors of the checkpoints that ship are skip-gram vectors of the posts beside GloVe's,
    reduced together to 100 numbers (:func:`rerankers.text.vectors.reduced`). By these AP was .426 and
    .269 in cross-validation by topic within 2011 and 2012, by GloVe's alone .426 and .254, by those
    of the posts alone .408 and .271. The mean of two seeds was no better than one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rerankers.base import (
    TRIGRAMS,
    URL_TRIGRAMS,
    WORDS,
    Inputs,
    Interactions,
    Reranker,
    Terms,
    require_choice,
)
from rerankers.layers.convolutions import ConvolutionTower
from rerankers.layers.embeddings import FrozenVectors, HashedVectors, TrainedVectors
from rerankers.layers.similarity import (
    mask_of,
    max_over_posts,
    mean_over_posts,
    partial_softmax,
    perceptron,
    weighted_mean,
    window_means,
)
from rerankers.perspectives import Perspective, perspectives_of
from rerankers.text.vocabulary import Vocabulary
from rerankers.text.words import TRIGRAM_COUNT, URL_PLACEHOLDER

MEAN_SCALE = 5.0  # Means of cosines are small numbers; so they are as large as the maxima


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the defaults are the configuration ``robust``."""

    trigram_size: int = 64  # Numbers in a trigram's vector
    word_filters: int = 128  # F of the word tower (paper: tuned in 64, 128, 256)
    trigram_filters: int = 64  # F of the tower that post and URL trigrams share
    word_width: int = 2  # k, terms under a filter (section 4.3)
    trigram_width: int = 4  # k for trigrams (section 4.3)
    depth: int = 2  # N, convolutional layers (section 4.3; Figure 2 varies it from 0 to 4)
    similarity: str = "cosine"  # ``cosine`` or ``dot`` (section 3.3)
    normalization: str = "none"
    """``none`` or ``post`` (softmax over the post's positions, section 3.3)."""
    temperature: float = 1.0  # Similarities are multiplied by it before the softmax
    max_pooling: bool = True  # Keep each query position's best match (Table 4)
    mean_pooling: bool = True  # Keep each query position's mean match (Table 4)
    idf_weights: bool = True  # Scale evidence by IDF (Table 4)
    use_words: bool = True  # The word module (Table 4)
    use_post_trigrams: bool = True  # Character representation of the post (Table 4)
    use_url_trigrams: bool = True  # Character representation of the URL (Table 4)
    evidence: str = "terms"
    """``terms``: one network for all query positions, averaged; ``positions``: one feature for
    each position (section 3.4)."""
    url_presence: bool = True  # Add to the evidence whether the post has a URL
    train_vectors: bool = False  # Train word and trigram vectors (section 4.3 does)
    train_filters: bool = False  # Train the convolutions (the paper does)
    hidden: int = 32  # Units of the hidden layers (paper: 150)
    dropout: float = 0.1  # Share of hidden units dropped in training (paper: tuned in 0 … 0.5)
    query_words: int = 10  # Words of a query that are read (section 4.3)
    query_trigrams: int = 51  # Trigrams of a query that are read (section 4.3)
    post_words: int = 68  # Words of a post that are read (section 4.3)
    post_trigrams: int = 140  # Trigrams of a post that are read (section 4.3)
    url_trigrams: int = 120  # Trigrams of a URL that are read (section 4.3)

    def __post_init__(self) -> None:
        require_choice("similarity", self.similarity, ("cosine", "dot"))
        require_choice("normalization", self.normalization, ("none", "post"))
        require_choice("evidence", self.evidence, ("terms", "positions"))


class PhraseVectors(NamedTuple):
    """A batch of texts at every depth.

    Attributes:
        levels: view -> depth + 1 tensors [B, L, F], position vectors from terms to phrases.
        terms: view -> the terms that were encoded.
    """

    levels: dict[str, list[Tensor]]
    terms: dict[str, Terms]


class Model(Reranker):
    """The network of section 3; see the module's docstring."""

    config_type = Config
    configurations: ClassVar[Mapping[str, Config]] = {
        "robust": Config(),
        "paper": Config(
            trigram_size=300, word_filters=256, trigram_filters=256, depth=4, similarity="dot",
            normalization="post", evidence="positions", url_presence=False, train_vectors=True,
            train_filters=True, hidden=150,
        ),
    }  # fmt: skip
    query_inputs = (WORDS, TRIGRAMS)
    post_inputs = (WORDS, TRIGRAMS, URL_TRIGRAMS)

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.config = config
        self.towers = nn.ModuleDict()
        if config.use_words:
            self.towers[WORDS] = _word_tower(config, vocabulary)
        if config.use_post_trigrams or config.use_url_trigrams:
            self.towers[TRIGRAMS] = _trigram_tower(config)
        for name, parameter in self.towers.named_parameters():
            if "convolutions" in name:
                parameter.requires_grad_(config.train_filters)
        self.perspectives = perspectives_of(config)
        self._build_evidence(config)

    def _build_evidence(self, config: Config) -> None:
        pooled = (config.max_pooling + config.mean_pooling) * (config.depth + 1)
        if config.evidence == "terms":
            self.position = nn.ModuleDict(
                {name: perceptron(pooled + 1, config.hidden, config.hidden // 2, config.dropout)
                 for name in self.perspectives}
            )  # fmt: skip
            size = len(self.perspectives) * (config.hidden // 2)
        else:
            size = sum(pooled * places.query_length for places in self.perspectives.values())
        self.score = perceptron(size + config.url_presence, config.hidden, 1, config.dropout)

    def encode_queries(self, inputs: Inputs) -> PhraseVectors:
        """Encode Q queries."""
        return self._encode(self.read_queries(inputs))

    def encode_posts(self, inputs: Inputs) -> PhraseVectors:
        """Encode D posts and their URLs."""
        return self._encode(self.read_posts(inputs))

    def read_queries(self, inputs: Inputs) -> dict[str, Terms]:
        """What is read of queries: the inputs, cut."""
        config = self.config
        return _cut(inputs, {WORDS: config.query_words, TRIGRAMS: config.query_trigrams})

    def read_posts(self, inputs: Inputs) -> dict[str, Terms]:
        """What is read of posts: the inputs, cut."""
        config = self.config
        return _cut(inputs, {WORDS: config.post_words, TRIGRAMS: config.post_trigrams,
                            URL_TRIGRAMS: config.url_trigrams})  # fmt: skip

    def _encode(self, terms: dict[str, Terms]) -> PhraseVectors:
        levels = {}
        for view, (ids, _) in terms.items():
            tower = WORDS if view == WORDS else TRIGRAMS
            if tower in self.towers:
                levels[view] = self.towers[tower](ids)
                if self.config.similarity == "cosine":
                    levels[view] = [F.normalize(x, dim=2, eps=1e-6) for x in levels[view]]
        return PhraseVectors(levels, terms)

    def interact(
        self, queries: PhraseVectors, posts: PhraseVectors, query_of_post: Tensor
    ) -> Interactions:
        """Equation 1 for each perspective: its features and, last, the IDF of each position."""
        pooled = {
            name: self._pooled(queries, posts, query_of_post, places)
            for name, places in self.perspectives.items()
        }
        return self.weigh(pooled, queries.terms, posts.terms, query_of_post)

    def weigh(
        self, pooled: Mapping[str, Sequence[Sequence[Tensor]]], queries: Inputs, posts: Inputs,
        query_of_post: Tensor,
    ) -> Interactions:  # fmt: skip
        """The interactions, of pooled matches [P, Lq] at every depth of each perspective."""
        interactions = {}
        for name, places in self.perspectives.items():
            terms = queries[places.query_input]
            features = self._features(pooled[name], terms, query_of_post, places)  # [P, Lq, K]
            weights = terms.weights if self.config.idf_weights else mask_of(terms.ids)
            interactions[name] = torch.cat(
                [features, weights[query_of_post].unsqueeze(2)], dim=2
            )  # [P, Lq, K + 1]
        if self.config.url_presence:
            interactions["url_presence"] = _url_presence(posts).unsqueeze(2)
        return interactions

    def represent(self, interactions: Interactions) -> Tensor:
        """The evidence of all perspectives side by side (section 3.4): [P, K]."""
        evidence = []
        for name, places in self.perspectives.items():
            features = interactions[name]
            if self.config.evidence == "terms":
                weights = features[:, :, -1]
                evidence.append(weighted_mean(self.position[name](features), weights))
            else:
                padding = places.query_length - features.shape[1]
                evidence.append(F.pad(features[:, :, :-1], (0, 0, 0, padding)).flatten(1))
        if self.config.url_presence:
            evidence.append(interactions["url_presence"].flatten(1))
        return torch.cat(evidence, dim=1)

    def head(self, representations: Tensor) -> Tensor:
        """Evidence integration (section 3.4): [P]."""
        scores: Tensor = self.score(representations).squeeze(1)
        return scores

    def interactions_are_fixed(self) -> bool:
        """Whether neither vectors nor filters are trained."""
        return not (self.config.train_vectors or self.config.train_filters)

    def _pooled(
        self,
        queries: PhraseVectors,
        posts: PhraseVectors,
        query_of_post: Tensor,
        places: Perspective,
    ) -> list[list[Tensor]]:
        """At every depth, pooled matches of each query position: [P, Lq] each."""
        post_mask = mask_of(posts.terms[places.post_input].ids)  # [P, Ld]
        levels = zip(
            queries.levels[places.query_input], posts.levels[places.post_input], strict=True
        )
        pooled = []
        for query, post in levels:
            similarity = torch.bmm(query[query_of_post], post.transpose(1, 2))  # [P, Lq, Ld]
            pooled.append(self.pool(similarity, post_mask, places))
        return pooled

    def _features(
        self, pooled: Sequence[Sequence[Tensor]], terms: Terms, query_of_post: Tensor,
        places: Perspective,
    ) -> Tensor:  # fmt: skip
        """Pooled matches, scaled by the IDF of the query's ``terms`` [Q, Lq]: [P, Lq, K]."""
        config, mask = self.config, mask_of(terms.ids)
        features: list[Tensor] = []
        for level, values in enumerate(pooled):
            if config.evidence == "positions" and config.idf_weights and level < places.weighted:
                weights = window_means(terms.weights, mask, 1 + level * (places.width - 1))
                features += [value * weights[query_of_post] for value in values]
            else:
                features += values
        return torch.stack(features, dim=2) * mask[query_of_post].unsqueeze(2)

    def pool(self, similarity: Tensor, post_mask: Tensor, places: Perspective) -> list[Tensor]:
        """Normalise, then max and mean over the post's positions: [P, Lq] each."""
        config, length = self.config, None
        if config.normalization != "none":
            length = places.post_length
            similarity = partial_softmax(
                similarity * config.temperature, post_mask.unsqueeze(1), 2, length
            )
        pooled = []
        if config.max_pooling:
            pooled.append(max_over_posts(similarity, post_mask))
        if config.mean_pooling:
            scale = MEAN_SCALE if config.normalization == "none" else 1.0
            pooled.append(scale * mean_over_posts(similarity, post_mask, length))
        return pooled


def _word_tower(config: Config, vocabulary: Vocabulary) -> ConvolutionTower:
    kind = TrainedVectors if config.train_vectors else FrozenVectors
    vectors = kind(vocabulary.vectors, vocabulary.buckets)
    size = vocabulary.vectors.shape[1]
    return ConvolutionTower(vectors, size, config.word_filters, config.word_width, config.depth)


def _trigram_tower(config: Config) -> ConvolutionTower:
    size = config.trigram_size
    vectors = (
        TrainedVectors(np.zeros((0, size), dtype=np.float32), TRIGRAM_COUNT)
        if config.train_vectors
        else HashedVectors(TRIGRAM_COUNT, size, seed=2)
    )
    return ConvolutionTower(
        vectors, size, config.trigram_filters, config.trigram_width, config.depth
    )


def _cut(inputs: Inputs, lengths: Mapping[str, int]) -> dict[str, Terms]:
    return {
        view: Terms(inputs[view].ids[:, :length], inputs[view].weights[:, :length])
        for view, length in lengths.items()
    }


def _url_presence(posts: Inputs) -> Tensor:
    """1.0 for posts with a URL, 0.0 for those with the placeholder: [P, 1]."""
    length = posts[URL_TRIGRAMS].ids.ne(0).sum(dim=1, keepdim=True)
    return length.gt(PLACEHOLDER_LENGTH).float()


PLACEHOLDER_LENGTH = len(URL_PLACEHOLDER)
"""Trigrams of the placeholder for a missing URL; no real URL is as short."""
