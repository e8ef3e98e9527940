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
    * Counts in the paper's 243 million posts are not available. IDF, the classical ln N/n, is from
      the background list of the encoder. That of a phrase is the sum of those of its words, taken
      to be independent, and of trigrams that do not overlap, whose own is from the list's words.
    * "The first two layers", whose features are weighted, include the embedding layer.
    * A softmax over two classes equals the sigmoid of the difference of their logits: one logit.
    * The softmax reads the length of word vectors: GloVe's, twice as long as word2vec's, saturate
      it, and a query word that a post lacks still gets most of a share. At word2vec's length they
      still match unrelated words more. So vectors of other files get a shorter one
      (:func:`of_word2vec_length`), chosen on training topics.
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
    * Word vectors (pre-trained), trigram vectors and filters (both random) are not trained. Random
      projections preserve the similarity of phrases; trained filters overfit within an epoch.
    * One small network reads every query position (its features at all depths, and its IDF); its
      outputs are averaged with IDF weights, so all positions share parameters.
    * Two convolutional layers instead of four: with fixed filters, longer phrases did not help.
    * One additional feature of the post: whether it has a URL.

``small``
    ``robust`` with one layer and half of its filters: a quarter of the memory of a post, and half
    of the time or less. It is the shipped one for any collection, with GloVe's vectors of 100
    numbers, as all shipped ones; ``scripts/results/notes.md`` has the figures.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tweetrerank.rerankers.networks import base, layers
from tweetrerank.rerankers.networks.base import (
    QUERY,
    TRIGRAMS,
    URL_TRIGRAMS,
    WORDS,
    Inputs,
    Interactions,
)
from tweetrerank.rerankers.networks.training.training_settings import RAO_2019
from tweetrerank.rerankers.settings import Checked, named, one_of
from tweetrerank.rerankers.text.vectors import of_word2vec_length
from tweetrerank.rerankers.text.vocabulary import Vocabulary
from tweetrerank.rerankers.text.words import (
    CHOICES,
    TRIGRAM_COUNT,
    URL_PLACEHOLDER,
    Reading,
)

MEAN_SCALE = (
    5.0  # Factor of mean similarities without softmax: about as large as the maxima
)

WEIGHTED_WORD_LEVELS = 2
"""Depths whose features are weighted by IDF (section 3.3: weights of longer phrases are sparse)."""

RAREST = math.log(243e6)  # IDF of a phrase of one post among the paper's 243 million


@dataclass(frozen=True)
class Config(Checked):
    """Hyperparameters; the defaults are the configuration ``robust``."""

    trigram_size: int = 64  # Dimensions of a trigram vector
    word_filters: int = 128  # F of the word tower (paper: tuned in 64, 128, 256)
    trigram_filters: int = 64  # F of the tower for trigrams of posts and URLs
    word_width: int = 2  # k, words under a filter (section 4.3)
    trigram_width: int = 4  # k, trigrams under a filter (section 4.3)
    depth: int = 2  # N, convolutional layers (section 4.3; 0 to 4 in Figure 2)
    similarity: str = one_of("cosine", "dot")  # Section 3.3: dot products
    normalization: str = one_of("none", "post", "query")
    """Softmax over the ``post`` (section 3.3), over the ``query`` and all padding (authors' code),
    or ``none``."""
    temperature: float = 1.0  # Factor of similarities before the softmax
    max_pooling: bool = True  # Keep each query position's maximum similarity (Table 4)
    mean_pooling: bool = True  # Keep each query position's mean similarity (Table 4)
    idf_weights: bool = True  # Weight features by IDF (Table 4)
    use_words: bool = True  # Word perspective (Table 4)
    use_post_trigrams: bool = True  # Perspective of the post's trigrams (Table 4)
    use_url_trigrams: bool = True  # Perspective of the URL's trigrams (Table 4)
    evidence: str = one_of("terms", "positions")
    """``terms``: one network for all query positions, averaged; ``positions``: one feature for
    each position (section 3.4)."""
    url_presence: bool = True  # Feature: whether the post has a URL
    separate_urls: bool = False
    """Convolutions of URLs, and of queries compared with them, of their own (authors' code)."""
    tokens: str = one_of(
        *CHOICES["tokens"]
    )  # Words, or NLTK's ``treebank`` (authors' code)
    trigrams: str = one_of(*CHOICES["trigrams"])
    """Trigrams of ``words``, or of the whole ``text`` (authors' code)."""
    urls: str = one_of(*CHOICES["urls"])
    """Host and ``path`` of a URL, or what the authors' ``code`` keeps."""
    train_vectors: bool = False  # Train word and trigram vectors (section 4.3: yes)
    train_filters: bool = False  # Train the convolutions (paper: yes)
    weighted_trigram_depths: int = (
        3  # Depths of trigrams weighted by IDF (authors' code: 2)
    )
    trains_padding: bool = (
        False  # Train the vector of padding (authors' code), else it is 0
    )
    word2vec_length: bool = False
    """Give word vectors other than word2vec's the length that suits the paper's softmax."""
    idf: str = one_of("relative", "classical", "phrases")
    """``relative``: weights in [0, 1]; ``classical``: ln N/n (section 3.3); ``phrases``: the same,
    of phrases and trigrams themselves, not of their words."""
    trigram_low: float = (
        0.0  # Trained trigram vectors start in U[low, high] (section 4.3)
    )
    trigram_high: float = 0.1
    keras_start: bool = False  # Other weights start as in Keras (section 4.3)
    phrase_dropout: float = 0.0
    """Share of dimensions of a text's term vectors and of outputs of each convolution dropped in
    training (authors' code; paper: tuned in 0 … 0.5)."""
    hidden: int = 32  # Units of the hidden layers (paper: 150)
    second_hidden: int = (
        0  # Units of one more hidden layer (authors' code: 50); 0: there is none
    )
    dropout: float = (
        0.1  # Share of hidden units dropped in training (authors' code: none)
    )
    query_words: int = 10  # Words of a query, at most (section 4.3)
    query_trigrams: int = 51  # Trigrams of a query, at most (section 4.3)
    post_words: int = 68  # Words of a post, at most (section 4.3)
    post_trigrams: int = 140  # Trigrams of a post, at most (section 4.3)
    url_trigrams: int = 120  # Trigrams of a URL, at most (section 4.3)

    def problems(self) -> Iterator[str]:
        """A message for each impossible value and combination."""
        yield from super().problems()
        if self.url_presence and self.urls == "code":
            yield (
                "setting url_presence: found true with urls=code, whose placeholder stands for a "
                "missing URL; expected url_presence=false, or urls=path"
            )
        if self.trigrams == "text" and self.idf != "phrases":
            yield (
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
    weighted: (
        int  # Depths, from the embedding layer on, whose features are weighted by IDF
    )


def perspectives_of(config: Config) -> dict[str, Perspective]:
    """Name -> each perspective that the configuration enables."""
    tower = URL_TRIGRAMS if config.separate_urls else TRIGRAMS
    own = config.trigram_width, config.weighted_trigram_depths
    words = (
        config.query_words,
        config.post_words,
        config.word_width,
        WEIGHTED_WORD_LEVELS,
    )
    trigrams = config.query_trigrams, config.post_trigrams, *own
    url_trigrams = config.query_trigrams, config.url_trigrams, *own
    perspectives = {
        "words": Perspective(WORDS, WORDS, WORDS, *words),
        "post_trigrams": Perspective(TRIGRAMS, TRIGRAMS, TRIGRAMS, *trigrams),
        "url_trigrams": Perspective(TRIGRAMS, URL_TRIGRAMS, tower, *url_trigrams),
    }
    return {
        name: each
        for name, each in perspectives.items()
        if getattr(config, f"use_{name}")
    }


class Phrases(NamedTuple):
    """A batch of encoded texts."""

    vectors: Mapping[tuple[str, str], Sequence[Tensor]]
    """Tower and input -> depth + 1 tensors [B, L, F], from vectors of terms to those of phrases; of
    length 1 for cosines."""
    terms: Inputs  # Cut to the lengths that the model reads


class Model(base.Reranker):
    """The network of section 3; see the module's docstring."""

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
        authors=replace(
            PAPER_SETTINGS, batch_pairs=64, held_out=0.15, held_out_of="each"
        ),
    )
    query_inputs = (WORDS, TRIGRAMS)
    post_inputs = (WORDS, TRIGRAMS, URL_TRIGRAMS)

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        self.perspectives = perspectives_of(config)
        self.reading = Reading(config.tokens, config.trigrams, config.urls)
        self.idf = config.idf
        self.interactions_are_fixed = not (config.train_vectors or config.train_filters)
        self.reads_padding = (
            config.normalization == "query"
        )  # Up to fixed lengths, like a term
        self.towers = self._towers(vocabulary)
        pooled = (config.max_pooling + config.mean_pooling) * (config.depth + 1)
        size = pooled * sum(each.query_length for each in self.perspectives.values())
        if config.evidence == "terms":
            sizes = pooled + 1, config.hidden, config.hidden // 2, config.dropout
            networks = {name: layers.perceptron(*sizes) for name in self.perspectives}
            self.position = nn.ModuleDict(networks)
            size = len(self.perspectives) * (config.hidden // 2)
        size += config.url_presence
        sizes = size, config.hidden, config.second_hidden or 1, config.dropout
        self.score = layers.perceptron(*sizes)
        if config.second_hidden:
            self.score.append(nn.ReLU()).append(nn.Linear(config.second_hidden, 1))
        if config.keras_start:
            _start_like_keras(self)

    def _towers(self, vocabulary: Vocabulary) -> nn.ModuleDict:
        """Name of a tower -> it; those of trigrams share the vectors."""
        config, towers, vectors = self.config, nn.ModuleDict(), vocabulary.vectors
        names = {each.tower for each in self.perspectives.values()}
        options = config.depth, self.reads_padding, config.phrase_dropout
        if config.word2vec_length:
            vectors = of_word2vec_length(vectors)
        if config.use_words:
            words: nn.Module = layers.FrozenVectors(vectors, vocabulary.buckets)
            if config.train_vectors:
                words = layers.TrainedVectors(
                    vectors, vocabulary.buckets, config.trains_padding
                )
            shape = vectors.shape[1], config.word_filters, config.word_width
            towers[WORDS] = layers.ConvolutionTower(words, *shape, *options)
        if names - {WORDS}:
            size, count = config.trigram_size, TRIGRAM_COUNT
            trigrams: nn.Module = layers.HashedVectors(count, size, seed=2)
            if config.train_vectors:
                how = config.trains_padding, config.trigram_low, config.trigram_high
                trigrams = layers.TrainedVectors(
                    np.zeros((0, size), np.float32), count, *how
                )
            shape = size, config.trigram_filters, config.trigram_width
            for name in sorted(names - {WORDS}):
                towers[name] = layers.ConvolutionTower(trigrams, *shape, *options)
        for name, parameter in towers.named_parameters():
            if "convolutions" in name:
                parameter.requires_grad_(config.train_filters)
        return towers

    def encode(self, inputs: Inputs, side: str) -> Phrases:
        """Encode B texts, cut to the lengths that the model reads, by the towers of all depths."""
        terms, vectors = dict(inputs), dict[tuple[str, str], list[Tensor]]()
        for each in self.perspectives.values():
            name, most = each.query_input, each.query_length
            if side != QUERY:
                name, most = each.post_input, each.post_length
            if (each.tower, name) not in vectors:
                terms[name] = inputs[name].first(most)
                levels = self.towers[each.tower](terms[name].ids)
                if self.config.similarity == "cosine":
                    levels = [layers.unit_length(level) for level in levels]
                vectors[each.tower, name] = levels
        return Phrases(vectors, terms)

    def interact(
        self, queries: Phrases, posts: Phrases, query_of_post: Tensor
    ) -> Interactions:
        """Equation 1 for each perspective: the features of :meth:`features`."""
        pooled = {}
        for name, each in self.perspectives.items():
            counts = self._counts(posts.terms[each.post_input].ids, each.post_length)
            levels = self.similarities(queries, posts, query_of_post, each)
            pooled[name] = [self._pooled(level, counts, each) for level in levels]
        url_lengths = posts.terms[URL_TRIGRAMS].lengths
        return self.features(pooled, queries.terms, query_of_post, url_lengths)

    def _counts(self, ids: Tensor, most: int) -> Tensor:
        """Positions that each one of texts [B, L] stands for: 1 for a term, 0 for padding. Where
        padding is read, [B, L + 1]: the first position after a text is all of its padding."""
        lengths = ids.count_nonzero(dim=1).unsqueeze(1)
        places = torch.arange(ids.shape[1] + self.reads_padding, device=ids.device)
        counts = (places < lengths).float()
        return (
            counts + (places == lengths) * (most - lengths)
            if self.reads_padding
            else counts
        )

    def similarities(
        self,
        queries: Phrases,
        posts: Phrases,
        query_of_post: Tensor,
        perspective: Perspective,
    ) -> Iterator[Tensor]:
        """Similarities [P, Lq, Ld] at each depth, after the softmax if there is one."""
        config, (_, _, tower, query_length, post_length, *_) = self.config, perspective
        own = queries.vectors[tower, perspective.query_input]
        theirs = posts.vectors[tower, perspective.post_input]
        counts = self._counts(queries.terms[perspective.query_input].ids, query_length)
        counts = counts[query_of_post].unsqueeze(2)
        post_mask = posts.terms[perspective.post_input].mask.unsqueeze(1)
        for query, post in zip(own, theirs, strict=True):
            values = torch.bmm(query[query_of_post], post.transpose(1, 2))
            if config.normalization == "query":
                # A softmax over all positions, each divided among those that it stands for.
                shares = (values * config.temperature + counts.log()).softmax(dim=1)
                values = torch.where(counts > 0, shares / counts.clamp_min(1.0), 0.0)
            elif config.normalization == "post":
                values = _post_softmax(
                    values * config.temperature, post_mask, post_length
                )
            yield values

    def _pooled(
        self, values: Tensor, counts: Tensor, perspective: Perspective
    ) -> tuple[Tensor, Tensor]:
        """Maximum and mean of similarities over each post, two of [P, Lq]; 0 without terms."""
        outside = counts.unsqueeze(1) == 0
        maxima = values.masked_fill(outside, -torch.inf).amax(dim=2)
        maxima = torch.where(counts.any(dim=1, keepdim=True), maxima, 0.0)
        total = torch.bmm(values, counts.unsqueeze(2)).squeeze(2)
        if self.config.normalization != "none":
            return maxima, total / perspective.post_length
        return maxima, MEAN_SCALE * total / counts.sum(dim=1, keepdim=True).clamp_min(
            1.0
        )

    def features(
        self,
        pooled: Mapping[str, Sequence[tuple[Tensor, Tensor]]],
        queries: Inputs,
        query_of_post: Tensor,
        url_lengths: Tensor,
    ) -> Interactions:
        """Perspective -> [P, Lq, K + 1]: pooled similarities of each query position, its weight.
        ``url_presence`` -> [P, 1, 1]: 1 for a post with a URL, of at least a few ``url_lengths``
        [P] trigrams, else 0. ``pooled``: perspective -> maximum and mean [P, Lq] at each depth."""
        config = self.config
        interactions, is_kept = {}, (config.max_pooling, config.mean_pooling)
        is_weighted = config.evidence == "positions" and config.idf_weights
        for name, perspective in self.perspectives.items():
            terms = queries[perspective.query_input]
            padding = (0, pooled[name][0][0].shape[1] - terms.ids.shape[1])
            mask, idf = F.pad(terms.mask, padding), F.pad(terms.weights, padding)
            values: list[Tensor] = []
            for depth, pair in enumerate(pooled[name]):
                level = [each for each, kept in zip(pair, is_kept, strict=True) if kept]
                if is_weighted and depth < perspective.weighted:
                    weights = self._phrase_weights(idf, mask, depth, perspective.width)
                    level = [value * weights[query_of_post] for value in level]
                values += level
            weights = idf if config.idf_weights else mask
            features = torch.stack([*values, weights[query_of_post]], dim=2)
            if self.reads_padding:  # Repeated for every position of padding
                lengths = terms.lengths[query_of_post].unsqueeze(1)
                places = torch.arange(perspective.query_length, device=lengths.device)
                places = (
                    places.minimum(lengths)
                    .unsqueeze(2)
                    .expand(-1, -1, features.shape[2])
                )
                interactions[name] = features.gather(1, places)
            else:
                interactions[name] = features * mask[query_of_post].unsqueeze(2)
        if (
            config.url_presence
        ):  # Every real URL has more trigrams than the placeholder.
            has_url = url_lengths > len(URL_PLACEHOLDER)
            interactions["url_presence"] = has_url.float().view(-1, 1, 1)
        return interactions

    def _phrase_weights(
        self, idf: Tensor, mask: Tensor, depth: int, width: int
    ) -> Tensor:
        """IDF of the phrase from each position on: [Q, Lq]."""
        length = 1 + depth * (width - 1)
        if self.config.idf != "phrases":  # The mean of its terms
            padded = (F.pad(values, (0, length - 1)) for values in (idf * mask, mask))
            sums, counts = (values.unfold(1, length, 1).sum(dim=2) for values in padded)
            return sums / counts.clamp_min(1.0)
        # Every (width - 1)-th term: all words, or trigrams that do not overlap.
        parts = [
            F.pad(idf, (0, place))[:, place:] for place in range(0, length, width - 1)
        ]
        return torch.stack(parts).sum(dim=0).clamp_max(RAREST)

    def represent(self, interactions: Interactions) -> Tensor:
        """Features of all perspectives, concatenated (section 3.4): [P, K]."""
        evidence = []
        for name, perspective in self.perspectives.items():
            features = interactions[name]
            if self.config.evidence == "terms":
                weights = features[:, :, -1]
                shares = weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-6)
                positions = self.position[name](features)
                evidence.append(torch.bmm(shares.unsqueeze(1), positions).squeeze(1))
            else:
                padding = perspective.query_length - features.shape[1]
                evidence.append(
                    F.pad(features[:, :, :-1], (0, 0, 0, padding)).flatten(1)
                )
        if self.config.url_presence:
            evidence.append(interactions["url_presence"].flatten(1))
        return torch.cat(evidence, dim=1)


def _post_softmax(logits: Tensor, mask: Tensor, length: int) -> Tensor:
    """Softmax over ``length`` positions of a post, of which those without a term have the logit 0.
    ``logits`` are [P, Lq, Ld], ``mask`` [P, 1, Ld]. The result is [P, Lq, Ld], 0 for padding."""
    unused = (length - mask.sum(dim=2, keepdim=True)).log()  # log of as many e⁰
    logits = logits.masked_fill(mask == 0, -torch.inf)
    logits = torch.cat([logits, unused.expand(-1, logits.shape[1], 1)], dim=2)
    return logits.softmax(dim=2)[:, :, :-1]


def _start_like_keras(module: nn.Module) -> None:
    """Draw weights of convolutions and linear layers as Keras does; biases are 0. Glorot & Bengio
    (2010): U[-b, b] with b² = 6 / (inputs + outputs). A filter of ``width`` terms counts its inputs
    and outputs at every offset."""
    for layer in module.modules():
        if isinstance(layer, layers.Convolution):
            inputs, outputs = layer.weight.shape
            bound = (6 / (inputs + layer.width * outputs)) ** 0.5
            nn.init.uniform_(layer.weight, -bound, bound)
        elif isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
