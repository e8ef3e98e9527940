"""MP-HCNN: multi-perspective relevance matching with hierarchical convolutions.

Jinfeng Rao, Wei Yang, Yuhao Zhang, Ferhan Ture and Jimmy Lin: *Multi-Perspective Relevance
Matching with Hierarchical ConvNets for Social Media Search*, AAAI 2019.

Stacked convolutions, shared by query and post, turn words and character trigrams into phrases of
growing length. At every depth, each query phrase is compared with all phrases of the post and of
its URL; the maximum and the mean similarity are kept. A small network turns these features, which
are weighted by inverse document frequency (IDF), into one score.

Four named configurations:

``paper``
    Section 3 as printed: dot products, softmax over the post's positions, one feature for each
    query position and depth, all parameters trained. Where the paper is silent or contradicts
    itself:

    * The paper pads all texts to a fixed length. Here padding is not computed, but accounted for
      exactly: positions after a text's end are zero at every depth, so each of them adds e⁰ to the
      denominator of the softmax. (The mean of a softmax over the post's own positions alone would
      be a constant.)
    * The counts of words and phrases in the paper's 243 million posts are not available. IDF, the
      classical ln N/n, is from the background list of the encoder. The IDF of a phrase is the sum
      of those of its words, and of trigrams that do not overlap; a trigram's own is from the
      list's words. A sum takes words to be independent.
    * "The first two layers", whose features are weighted, include the embedding layer.
    * A softmax over two classes equals the sigmoid of the difference of their logits: one logit.
    * The softmax reads the length of word vectors: with GloVe's, which are twice as long as
      word2vec's, it is saturated, and a query word that a post lacks still gets most of a share.
      At word2vec's length they still match unrelated words more than word2vec's do. So vectors of
      other files get a shorter one (:func:`of_word2vec_length`), chosen on training topics.
    * The places of dropout, initial weights (Keras's), momentum, and the end of training are those
      of the authors' code. The share of dropout is one of four between .1 and .5 that it has for
      four years.

``authors``
    The form of the authors' code (github.com/jinfengr/neural-tweet-search), as far as it differs
    from the paper: the softmax is over the query's positions; padding is read by convolutions and
    softmax like any other term, has a trained vector, and matches nothing; IDF weights features of
    the first two depths only, with that of padding 0; trigram vectors start in U[-.05, .05]; there
    is a second hidden layer of 50 units; training is by batches of 64 (128 for 2014), and 15 % of
    the topics of each year are held out. Words are NLTK's Treebank tokens, trigrams go across them,
    URLs are cut otherwise and have convolutions of their own, and a post without a URL has a
    placeholder, by whose trigrams its absence can be learnt. The code has a share of dropout for
    each year left out: .1, .5, .4 and .3 from 2011 on. Not taken over:

    * a numbering of URL trigrams of its own, by which they share vectors with other trigrams of
      queries, so that URLs match queries by chance;
    * IDF of phrases that is off their windows by one word or two trigrams, and a weight of 1 for a
      bigram that is not in the list;
    * a vector for each word: unknown words share 32,768;
    * windows that begin before their position (all padded positions of a text have the same vector
      here, which is computed once and counted; in training they share one draw of dropout).

``robust`` (the default)
    Generalises from a hundred topics; chosen by cross-validation on training topics:

    * Cosine instead of dot product and softmax: rare and unknown words have short vectors, so
      their exact matches, the strongest signal of relevance, hardly change a dot product.
    * Word vectors (pre-trained), trigram vectors and convolutional filters (both random) are not
      trained. A random projection preserves the similarity of phrases; trained filters overfit the
      training topics within an epoch.
    * The same small network reads every query position (its features at all depths, and its IDF);
      its outputs are averaged with IDF weights, so all positions share parameters.
    * Two convolutional layers instead of four: with fixed filters, longer phrases did not help.
    * One additional feature of the post: whether it has a URL.

``small``
    ``robust`` with one layer and half of its filters: a quarter of the memory of a post, and half
    of the time or less. It is the shipped one for any collection. Word vectors of the shipped
    checkpoints are GloVe's with 100 numbers; ``scripts/results/notes.md`` has the figures.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rerankers.devices import is_host
from rerankers.errors import RerankerError, require_choice
from rerankers.networks.base import (
    IDF_FORMS,
    TRIGRAMS,
    URL_TRIGRAMS,
    WORDS,
    Inputs,
    Interactions,
    Reranker,
    named,
)
from rerankers.networks.layers.convolutions import ConvolutionTower, perceptron, start_like_keras
from rerankers.networks.layers.embeddings import (
    FrozenVectors,
    HashedVectors,
    TrainedVectors,
    counts_of,
    mask_of,
)
from rerankers.networks.layers.similarity import (
    PaddedSimilarities,
    unit_length,
    weighted_mean,
    window_means,
)
from rerankers.networks.training.settings import RAO_2019
from rerankers.text.vectors import of_word2vec_length
from rerankers.text.vocabulary import Vocabulary
from rerankers.text.words import CHOICES, TRIGRAM_COUNT, URL_PLACEHOLDER, Reading

MEAN_SCALE = 5.0
"""Factor of mean similarities without softmax: it makes them about as large as the maxima."""

WEIGHTED_WORD_LEVELS = 2
"""Depths whose features are weighted by IDF (section 3.3: weights of longer phrases are sparse)."""

RAREST = math.log(243e6)  # IDF of a phrase of one post among the paper's 243 million
PLACEHOLDER_LENGTH = len(URL_PLACEHOLDER)
"""Trigrams of the placeholder for a missing URL; every real URL has more."""
PART = 32  # Pairs that are padded to one length, to be compared together


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the defaults are the configuration ``robust``."""

    trigram_size: int = 64  # Dimensions of a trigram vector
    word_filters: int = 128  # F of the word tower (paper: tuned in 64, 128, 256)
    trigram_filters: int = 64  # F of the tower for trigrams of posts and URLs
    word_width: int = 2  # k, words under a filter (section 4.3)
    trigram_width: int = 4  # k, trigrams under a filter (section 4.3)
    depth: int = 2  # N, convolutional layers (section 4.3; 0 to 4 in Figure 2)
    similarity: str = "cosine"  # ``cosine`` or ``dot`` (section 3.3)
    normalization: str = "none"
    """Softmax over the ``post`` (section 3.3), over the ``query`` and all padding (authors' code),
    or ``none``."""
    temperature: float = 1.0  # Factor of similarities before the softmax
    max_pooling: bool = True  # Keep each query position's maximum similarity (Table 4)
    mean_pooling: bool = True  # Keep each query position's mean similarity (Table 4)
    idf_weights: bool = True  # Weight features by IDF (Table 4)
    use_words: bool = True  # Word perspective (Table 4)
    use_post_trigrams: bool = True  # Perspective of the post's trigrams (Table 4)
    use_url_trigrams: bool = True  # Perspective of the URL's trigrams (Table 4)
    evidence: str = "terms"
    """``terms``: one network for all query positions, averaged; ``positions``: one feature for
    each position (section 3.4)."""
    url_presence: bool = True  # Feature: whether the post has a URL
    separate_urls: bool = False
    """Convolutions of URLs, and of queries compared with them, of their own (authors' code)."""
    tokens: str = "words"  # Words, or NLTK's ``treebank`` tokens (authors' code)
    trigrams: str = "words"  # Trigrams of ``words``, or of the whole ``text`` (authors' code)
    urls: str = "path"  # Host and ``path`` of a URL, or what the authors' ``code`` keeps
    train_vectors: bool = False  # Train word and trigram vectors (section 4.3: yes)
    train_filters: bool = False  # Train the convolutions (paper: yes)
    weighted_trigram_depths: int = 3  # Depths of trigrams weighted by IDF (authors' code: 2)
    trains_padding: bool = False  # Train the vector of padding (authors' code), else it is 0
    word2vec_length: bool = False
    """Give word vectors other than word2vec's the length that suits the paper's softmax."""
    idf: str = "relative"
    """``relative``: weights in [0, 1]; ``classical``: ln N/n (section 3.3); ``phrases``: the same,
    of phrases and trigrams themselves, not of their words."""
    trigram_low: float = 0.0  # Trained trigram vectors start in U[low, high] (section 4.3)
    trigram_high: float = 0.1
    keras_start: bool = False  # Other weights start as in Keras (section 4.3)
    phrase_dropout: float = 0.0
    """Share of dimensions of a text's term vectors and of outputs of each convolution dropped in
    training (authors' code; paper: tuned in 0 … 0.5)."""
    hidden: int = 32  # Units of the hidden layers (paper: 150)
    second_hidden: int = 0  # Units of one more hidden layer (authors' code: 50); 0: there is none
    dropout: float = 0.1  # Share of hidden units dropped in training (authors' code: none)
    query_words: int = 10  # Words of a query, at most (section 4.3)
    query_trigrams: int = 51  # Trigrams of a query, at most (section 4.3)
    post_words: int = 68  # Words of a post, at most (section 4.3)
    post_trigrams: int = 140  # Trigrams of a post, at most (section 4.3)
    url_trigrams: int = 120  # Trigrams of a URL, at most (section 4.3)

    def __post_init__(self) -> None:
        require_choice("similarity", self.similarity, ("cosine", "dot"))
        require_choice("normalization", self.normalization, ("none", "post", "query"))
        require_choice("evidence", self.evidence, ("terms", "positions"))
        require_choice("idf", self.idf, IDF_FORMS)
        for name, choices in CHOICES.items():
            require_choice(name, getattr(self, name), choices)
        if self.url_presence and self.urls == "code":
            raise RerankerError(
                "setting url_presence: found true with urls=code, whose placeholder stands for a "
                "missing URL; expected url_presence=false, or urls=path"
            )
        if self.trigrams == "text" and self.idf != "phrases":
            raise RerankerError(
                f"setting idf: found {self.idf} with trigrams=text, which go across words and have "
                "an IDF of their own; expected idf=phrases, or trigrams=words"
            )


PAPER = Config(
    trigram_size=300,
    word_filters=256,
    trigram_filters=256,
    depth=4,
    similarity="dot",
    normalization="post",
    evidence="positions",
    url_presence=False,
    train_vectors=True,
    train_filters=True,
    word2vec_length=True,
    idf="phrases",
    keras_start=True,
    phrase_dropout=0.4,
    hidden=150,
    dropout=0.0,
)
"""The configuration ``paper``."""


PAPER_SETTINGS = replace(
    RAO_2019, momentum=0.9, schedule="plateau", halve_after=2, precision="bf16"
)
"""Section 4.3, with the authors' momentum and schedule, of which the paper says nothing."""


class Perspective(NamedTuple):
    """An input of the query and the input of the post that it is compared with."""

    query_input: str
    post_input: str
    tower: str  # That encodes both inputs
    query_length: int  # Terms at most
    post_length: int
    width: int  # Terms under a filter
    weighted: int  # Depths, from the embedding layer on, whose features are weighted by IDF


def perspectives_of(config: Config) -> dict[str, Perspective]:
    """Name -> each perspective that the configuration enables."""
    tower = URL_TRIGRAMS if config.separate_urls else TRIGRAMS
    words = config.query_words, config.post_words, config.word_width, WEIGHTED_WORD_LEVELS
    trigrams, url_trigrams = (
        (config.query_trigrams, length, config.trigram_width, config.weighted_trigram_depths)
        for length in (config.post_trigrams, config.url_trigrams)
    )
    perspectives = {
        "words": Perspective(WORDS, WORDS, WORDS, *words),
        "post_trigrams": Perspective(TRIGRAMS, TRIGRAMS, TRIGRAMS, *trigrams),
        "url_trigrams": Perspective(TRIGRAMS, URL_TRIGRAMS, tower, *url_trigrams),
    }
    return {name: each for name, each in perspectives.items() if getattr(config, f"use_{name}")}


class PhraseVectors(NamedTuple):
    """A batch of encoded queries."""

    levels: dict[str, list[Tensor]]
    """Tower -> depth + 1 tensors [B, L, F], from vectors of terms to those of phrases; of length 1
    for cosines."""
    terms: Inputs


class Pairing(NamedTuple):
    """P posts, each with its query."""

    queries: PhraseVectors
    posts: Inputs  # Cut to the lengths that the model reads
    query_of_post: Tensor  # [P] row of the query of each post


class Part(NamedTuple):
    """Pairs that are compared together, padded to the lengths of their longest texts."""

    rows: Tensor  # [B] of all pairs
    query_length: int
    post_length: int


class Model(Reranker):
    """The network of section 3; see the module's docstring."""

    config_type = Config
    has_matches = True
    configurations = named(
        robust=Config(),
        small=Config(word_filters=64, trigram_filters=32, depth=1),
        paper=PAPER,
        authors=replace(
            PAPER,
            normalization="query",
            trains_padding=True,
            weighted_trigram_depths=2,
            trigram_low=-0.05,
            trigram_high=0.05,
            second_hidden=50,
            separate_urls=True,
            tokens="treebank",
            trigrams="text",
            urls="code",
        ),
    )
    own_settings = named(
        paper=PAPER_SETTINGS,
        authors=replace(PAPER_SETTINGS, batch_pairs=64, held_out=0.15, held_out_of="each"),
    )
    query_inputs = (WORDS, TRIGRAMS)
    post_inputs = (WORDS, TRIGRAMS, URL_TRIGRAMS)

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        self.perspectives = perspectives_of(config)
        self.reading = Reading(config.tokens, config.trigrams, config.urls)
        self.idf = config.idf
        self.towers = _towers(config, vocabulary)
        pooled = (config.max_pooling + config.mean_pooling) * (config.depth + 1)
        size = pooled * sum(each.query_length for each in self.perspectives.values())
        if config.evidence == "terms":
            sizes = pooled + 1, config.hidden, config.hidden // 2, config.dropout
            self.position = nn.ModuleDict({name: perceptron(*sizes) for name in self.perspectives})
            size = len(self.perspectives) * (config.hidden // 2)
        size += config.url_presence
        self.score = perceptron(size, config.hidden, config.second_hidden or 1, config.dropout)
        if config.second_hidden:
            self.score.append(nn.ReLU()).append(nn.Linear(config.second_hidden, 1))
        if config.keras_start:
            start_like_keras(self)

    def encode_queries(self, inputs: Inputs) -> PhraseVectors:
        """Encode Q queries."""
        terms = self.cut_queries(inputs)
        by_tower = {p.tower: terms[p.query_input].ids for p in self.perspectives.values()}
        levels = {tower: self._levels(tower, [ids])[0] for tower, ids in by_tower.items()}
        return PhraseVectors(levels, terms)

    def encode_posts(self, inputs: Inputs) -> Inputs:
        """Cut D posts to the lengths that the model reads.

        They are encoded where they are compared, in parts of similar lengths with little padding.
        """
        config = self.config
        lengths = config.post_words, config.post_trigrams, config.url_trigrams
        names = zip(self.post_inputs, lengths, strict=True)
        return {name: inputs[name].first(length) for name, length in names}

    def cut_queries(self, inputs: Inputs) -> Inputs:
        """Inputs of Q queries, cut to the lengths that the model reads."""
        lengths = {WORDS: self.config.query_words, TRIGRAMS: self.config.query_trigrams}
        return {name: inputs[name].first(length) for name, length in lengths.items()}

    @property
    def reads_padding(self) -> bool:
        """Whether texts are padded to fixed lengths, and padding is read like a term."""
        return self.config.normalization == "query"

    def _levels(self, tower: str, parts: Sequence[Tensor]) -> list[list[Tensor]]:
        """Vectors of parts of an input's texts at every depth; of length 1 for cosines."""
        encoder: Any = self.towers[tower]
        levels: list[list[Tensor]] = encoder.of_parts(parts)
        if self.config.similarity == "cosine":
            return [[unit_length(vectors) for vectors in part] for part in levels]
        return levels

    def interact(
        self, queries: PhraseVectors, posts: Inputs, query_of_post: Tensor
    ) -> Interactions:
        """Equation 1 for each perspective: the features of :meth:`features`."""
        pairs = Pairing(queries, posts, query_of_post)
        pooled = {name: self._pooled(pairs, each) for name, each in self.perspectives.items()}
        url_lengths = posts[URL_TRIGRAMS].ids.ne(0).sum(dim=1)
        return self.features(pooled, queries.terms, query_of_post, url_lengths)

    def _pooled(self, pairs: Pairing, perspective: Perspective) -> list[list[Tensor]]:
        """Results of :meth:`pool` at each depth; on a CPU for pairs of similar lengths at a time.

        Lengths that a GPU computes would have to be waited for.
        """
        counts, rows = self._counts(pairs, perspective), pairs.query_of_post
        if is_host(rows.device):
            query_lengths, post_lengths = (each.count_nonzero(dim=1) for each in counts)
            parts = _by_lengths(query_lengths, post_lengths, rows)
        else:
            every = torch.arange(len(rows), device=rows.device)
            parts = [Part(every, counts[0].shape[1], counts[1].shape[1])]
        pools = []
        for part, depths in zip(parts, self._compared(pairs, perspective, parts), strict=True):
            # All depths at once: calls cost more than these small matrices.
            joined = PaddedSimilarities(*map(torch.cat, zip(*depths, strict=True)))
            pooled = torch.stack(self.pool(joined, perspective)).unflatten(1, (-1, len(part.rows)))
            pools.append(F.pad(pooled, (0, counts[0].shape[1] - part.query_length)))
        order = torch.cat([part.rows for part in parts]).argsort()
        by_depth = torch.cat(pools, dim=2).index_select(2, order).unbind(1)
        return [list(level.unbind(0)) for level in by_depth]

    def _counts(self, pairs: Pairing, perspective: Perspective) -> tuple[Tensor, Tensor]:
        """Positions that each one of the queries [Q, Lq] and posts [P, Ld] stands for."""
        query_ids = pairs.queries.terms[perspective.query_input].ids
        post_ids = pairs.posts[perspective.post_input].ids
        if not self.reads_padding:
            return mask_of(query_ids), mask_of(post_ids)
        lengths = perspective.query_length, perspective.post_length
        return counts_of(query_ids, lengths[0]), counts_of(post_ids, lengths[1])

    def similarities(self, pairs: Pairing, perspective: Perspective) -> list[PaddedSimilarities]:
        """Similarities of all pairs, at each depth."""
        lengths = [counts.shape[1] for counts in self._counts(pairs, perspective)]
        part = Part(torch.arange(len(pairs.query_of_post)), *lengths)
        return next(self._compared(pairs, perspective, [part]))

    def _compared(
        self, pairs: Pairing, perspective: Perspective, parts: Sequence[Part]
    ) -> Iterator[list[PaddedSimilarities]]:
        """Similarities at each depth of the pairs of each part."""
        query_counts, post_counts = self._counts(pairs, perspective)
        tower, ids = perspective.tower, pairs.posts[perspective.post_input].ids
        of_parts = self._levels(tower, [ids[part.rows, : part.post_length] for part in parts])
        for (rows, query_length, post_length), levels in zip(parts, of_parts, strict=True):
            own = pairs.query_of_post[rows]
            counts = query_counts[own, :query_length], post_counts[rows, :post_length]
            queries = [each[:, :query_length][own] for each in pairs.queries.levels[tower]]
            posts = [each[:, :post_length].transpose(1, 2) for each in levels]
            products = map(torch.bmm, queries, posts)
            yield [PaddedSimilarities(values, *counts) for values in products]

    def pool(self, similarities: Any, perspective: Perspective) -> list[Tensor]:
        """Maximum and mean over each post, after the softmax if there is one: [P, Lq] each.

        ``similarities`` are :class:`PaddedSimilarities`, or those of distinct windows.
        """
        config = self.config
        if config.normalization == "query":
            pooled = similarities.pooled_query_softmax(config.temperature)
        elif config.normalization == "post":
            pooled = similarities.pooled_softmax(config.temperature, perspective.post_length)
        else:
            pooled = similarities.max(), MEAN_SCALE * similarities.mean()
        is_kept = (config.max_pooling, config.mean_pooling)
        return [values for values, kept in zip(pooled, is_kept, strict=True) if kept]

    def features(
        self,
        pooled: Mapping[str, Sequence[Sequence[Tensor]]],
        queries: Inputs,
        query_of_post: Tensor,
        url_lengths: Tensor,
    ) -> Interactions:
        """Perspective -> [P, Lq, K + 1]: pooled similarities of each query position, its weight.

        ``url_presence`` -> [P, 1, 1]: 1 for a post with a URL, else 0.

        Args:
            pooled: perspective -> result of :meth:`pool` at each depth.
            queries: terms of Q queries.
            query_of_post: [P] row of the query of each post.
            url_lengths: [P] trigrams of each post's URL.
        """
        interactions = {}
        for name, perspective in self.perspectives.items():
            ids, idf = queries[perspective.query_input]
            padding = (0, pooled[name][0][0].shape[1] - ids.shape[1])
            mask, idf = F.pad(mask_of(ids), padding), F.pad(idf, padding)
            values: list[Tensor] = []
            for depth, level in enumerate(pooled[name]):
                if self._is_weighted(depth, perspective):
                    weights = self._phrase_weights(idf, mask, depth, perspective.width)
                    level = [value * weights[query_of_post] for value in level]
                values += level
            features = torch.stack(values, dim=2)
            weights = idf if self.config.idf_weights else mask
            features = torch.cat([features, weights[query_of_post].unsqueeze(2)], dim=2)
            if self.reads_padding:
                lengths = mask.count_nonzero(dim=1)[query_of_post]
                interactions[name] = _every_position(features, lengths, perspective.query_length)
            else:
                interactions[name] = features * mask[query_of_post].unsqueeze(2)
        if self.config.url_presence:
            has_url = url_lengths > PLACEHOLDER_LENGTH
            interactions["url_presence"] = has_url.float().view(-1, 1, 1)
        return interactions

    def _is_weighted(self, depth: int, perspective: Perspective) -> bool:
        """Whether features of this depth are multiplied by the IDF of their phrases."""
        is_by_position = self.config.evidence == "positions"
        return is_by_position and self.config.idf_weights and depth < perspective.weighted

    def _phrase_weights(self, idf: Tensor, mask: Tensor, depth: int, width: int) -> Tensor:
        """IDF of the phrase from each position on: [Q, Lq]."""
        if self.config.idf != "phrases":
            return window_means(idf, mask, 1 + depth * (width - 1))
        # Every (width - 1)-th term: all words, or trigrams that do not overlap.
        parts = [
            F.pad(idf, (0, place))[:, place:]
            for place in range(0, 1 + depth * (width - 1), width - 1)
        ]
        return torch.stack(parts).sum(dim=0).clamp_max(RAREST)

    def represent(self, interactions: Interactions) -> Tensor:
        """Features of all perspectives, concatenated (section 3.4): [P, K]."""
        evidence = []
        for name, perspective in self.perspectives.items():
            features = interactions[name]
            if self.config.evidence == "terms":
                weights = features[:, :, -1]
                evidence.append(weighted_mean(self.position[name](features), weights))
            else:
                padding = perspective.query_length - features.shape[1]
                evidence.append(F.pad(features[:, :, :-1], (0, 0, 0, padding)).flatten(1))
        if self.config.url_presence:
            evidence.append(interactions["url_presence"].flatten(1))
        return torch.cat(evidence, dim=1)

    def interactions_are_fixed(self) -> bool:
        """Whether neither vectors nor filters are trained."""
        return not (self.config.train_vectors or self.config.train_filters)


def _towers(config: Config, vocabulary: Vocabulary) -> nn.ModuleDict:
    """Name of a tower -> it; those of trigrams share the vectors."""
    towers, vectors = nn.ModuleDict(), vocabulary.vectors
    names = {perspective.tower for perspective in perspectives_of(config).values()}
    options = config.depth, config.normalization == "query", config.phrase_dropout
    if config.word2vec_length:
        vectors = of_word2vec_length(vectors)
    if config.use_words:
        words: nn.Module = FrozenVectors(vectors, vocabulary.buckets)
        if config.train_vectors:
            words = TrainedVectors(
                vectors, vocabulary.buckets, trains_padding=config.trains_padding
            )
        shape = vectors.shape[1], config.word_filters, config.word_width
        towers[WORDS] = ConvolutionTower(words, *shape, *options)
    if names - {WORDS}:
        size, bounds = config.trigram_size, (config.trigram_low, config.trigram_high)
        trigrams: nn.Module = HashedVectors(TRIGRAM_COUNT, size, seed=2)
        if config.train_vectors:
            none = np.zeros((0, size), dtype=np.float32)
            trigrams = TrainedVectors(none, TRIGRAM_COUNT, *bounds, config.trains_padding)
        shape = size, config.trigram_filters, config.trigram_width
        for name in sorted(names - {WORDS}):
            towers[name] = ConvolutionTower(trigrams, *shape, *options)
    for name, parameter in towers.named_parameters():
        if "convolutions" in name:
            parameter.requires_grad_(config.train_filters)
    return towers


def _every_position(features: Tensor, lengths: Tensor, positions: int) -> Tensor:
    """Features [P, L, K], with those of padding at ``lengths`` [P], repeated: [P, positions, K]."""
    places = torch.arange(positions, device=lengths.device).minimum(lengths.unsqueeze(1))
    return features.gather(1, places.unsqueeze(2).expand(-1, -1, features.shape[2]))


def _by_lengths(query_lengths: Tensor, post_lengths: Tensor, query_of_post: Tensor) -> list[Part]:
    """P pairs in parts of similar lengths, of queries [Q] and posts [P]."""
    query_lengths = query_lengths[query_of_post]
    parts = [
        part
        for rows in query_lengths.argsort(stable=True).split(4 * PART)
        for part in rows[post_lengths[rows].argsort(stable=True)].split(PART)
    ]
    return [
        Part(rows, *(max(1, int(each[rows].max())) for each in (query_lengths, post_lengths)))
        for rows in parts
    ]
