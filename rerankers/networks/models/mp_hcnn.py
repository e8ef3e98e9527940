"""MP-HCNN: multi-perspective relevance matching with hierarchical convolutions.

Jinfeng Rao, Wei Yang, Yuhao Zhang, Ferhan Ture and Jimmy Lin: *Multi-Perspective
Relevance Matching with Hierarchical ConvNets for Social Media Search*, AAAI 2019.

Stacked convolutions, shared by query and post, turn words and character trigrams into
phrases of growing length. At every depth, each query phrase is compared with all
phrases of the post and of its URL, and the maximum and the mean similarity are kept. A
small network turns these features, weighted by inverse document frequency (IDF), into
one score.

Four named configurations:

``paper``
    The model of section 3 as printed: it has dot products, a softmax over the post's
    positions, and one feature for each query position and depth, and all parameters are
    trained. Choices where the paper is silent or contradicts itself:

    * The paper pads all texts to a fixed length. Here padding is not computed, but
      accounted for exactly: positions after a text's end are zero at every depth, so
      each of them adds e⁰ to the denominator of the softmax. (The mean of a softmax
      over the post's positions alone would be a constant.)
    * Counts in the paper's 243 million posts are not available. IDF, the classical ln
      N/n, is from the encoder's list of words. The IDF of a phrase is the sum over its
      words, taken to be independent, or over its trigrams that do not overlap. The IDF
      of a trigram is from the list's words.
    * "The first two layers", whose features are weighted, include the embedding layer.
    * A softmax over two classes equals the sigmoid of the difference of their logits,
      so one logit suffices.
    * The softmax depends on the length of word vectors. GloVe's vectors are twice as
      long as word2vec's and saturate it, so that even a query word that the post lacks
      gets most of a share. At the length of word2vec's, they still match unrelated
      words more than word2vec's do. So vectors of other files are given a shorter
      length (:func:`of_word2vec_length`), which was chosen on training topics.
    * The places of dropout, initial weights (Keras's), momentum, and the end of
      training are those of the authors' code. The code has a share of dropout between
      .1 and .5 for each of four years, and one of these is used here.

``authors``
    The model in the authors' code (github.com/jinfengr/neural-tweet-search), which
    differs from the paper as follows:

    * The softmax is over the query's positions.
    * Convolutions and softmax read padding like any other term. It has a trained
      vector, and matches nothing.
    * IDF weights only features of the first two depths. The IDF of padding is 0.
    * Trigram vectors start in U[-.05, .05].
    * A second hidden layer has 50 units.
    * Training is by batches of 64 (128 for 2014), and 15 % of the topics of each year
      are held out.
    * Words are NLTK's Treebank tokens, and trigrams go across them.
    * URLs are cut in another way and have separate convolutions. A post without a URL
      has a placeholder, and its trigrams show that there is no URL.
    * The code has a share of dropout for each year left out: .1, .5, .4 and .3 from
      2011 on.

    These properties of the code are not taken over:

    * URL trigrams have a separate numbering, so that they share vectors with other
      trigrams of queries, and URLs match queries by chance.
    * The IDF of a phrase is that of a span one word or two trigrams away, and a bigram
      that is not in the list has the weight 1.
    * Each word has a vector. Here unknown words share 32,768 vectors.
    * Spans begin before their position. (All padded positions of a text have the same
      vector here, which is computed once and counted. In training they share one draw
      of dropout.)

``robust`` (the default)
    A model that generalises from a hundred topics. It was chosen by cross-validation on
    training topics:

    * Similarities are cosines instead of dot products with a softmax. Rare and unknown
      words have short vectors, so their exact matches, which are the strongest signal
      of relevance, hardly change a dot product.
    * Word vectors (pre-trained), trigram vectors and filters (both random) are not
      trained. Random projections preserve the similarity of phrases, while trained
      filters overfit within an epoch.
    * One small network reads every query position: its features at all depths, and its
      IDF. The outputs are averaged with IDF weights, so that all positions share
      parameters.
    * There are two convolutional layers instead of four, because longer phrases did not
      help with fixed filters.
    * There is one more feature of the post, which says whether it has a URL.

``small``
    ``robust`` with one layer and half of its filters. It takes a quarter of the memory
    for a post, and at most half of the time. It is the shipped configuration for any
    collection. All shipped ones have GloVe's vectors of 100 numbers. The figures are in
    ``scripts/results/notes.md``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tweetrerank.rerankers import devices
from tweetrerank.rerankers.explanation import Explanation
from tweetrerank.rerankers.networks.base import (
    QUERY,
    TRIGRAMS,
    URL_TRIGRAMS,
    WORDS,
    Inputs,
    Interactions,
    Reranker,
)
from tweetrerank.rerankers.networks.inputs import TextEncoder, Tokenized
from tweetrerank.rerankers.networks.layers.convolutions import (
    Convolution,
    ConvolutionTower,
)
from tweetrerank.rerankers.networks.layers.perceptrons import perceptron
from tweetrerank.rerankers.networks.layers.positions import pad_after
from tweetrerank.rerankers.networks.layers.term_vectors import (
    FrozenVectors,
    HashedVectors,
    TrainedVectors,
    unit_length,
)
from tweetrerank.rerankers.networks.models._mp_hcnn_fast_path import FastPath, Pooled
from tweetrerank.rerankers.networks.models._mp_hcnn_matches import explain
from tweetrerank.rerankers.networks.training.training_settings import RAO_2019
from tweetrerank.rerankers.pairs import Pairs
from tweetrerank.rerankers.settings import Checked, named, one_of
from tweetrerank.rerankers.text.vectors import of_word2vec_length
from tweetrerank.rerankers.text.vocabulary import Vocabulary
from tweetrerank.rerankers.text.words import (
    CHOICES,
    TRIGRAM_COUNT,
    URL_PLACEHOLDER,
    Reading,
)

WEIGHTED_WORD_LEVELS = 2
"""Number of depths at which features of words are weighted by IDF. The weights of
longer phrases are sparse (section 3.3)."""

RAREST = math.log(243e6)  # IDF of a phrase in one of the paper's 243 million posts


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
    """Where the softmax is taken: over the ``post`` (section 3.3), over the ``query``
    and all padding (authors' code), or nowhere (``none``)."""
    temperature: float = 1.0  # Factor of similarities before the softmax
    max_pooling: bool = True  # Keep each query position's maximum similarity (Table 4)
    mean_pooling: bool = True  # Keep each query position's mean similarity (Table 4)
    idf_weights: bool = True  # Weight features by IDF (Table 4)
    use_words: bool = True  # Word perspective (Table 4)
    use_post_trigrams: bool = True  # Perspective of the post's trigrams (Table 4)
    use_url_trigrams: bool = True  # Perspective of the URL's trigrams (Table 4)
    evidence: str = one_of("terms", "positions")
    """How query positions are read. With ``terms``, one network reads all positions,
    and its outputs are averaged. With ``positions``, each position has its own features
    (section 3.4)."""
    url_presence: bool = True  # Feature: whether the post has a URL
    separate_urls: bool = False
    """Whether URLs, and queries that are compared with them, have their own
    convolutions (authors' code)."""
    tokens: str = one_of(*CHOICES["tokens"])
    """How texts are split: into ``words``, or into NLTK's ``treebank`` tokens (authors'
    code)."""
    trigrams: str = one_of(*CHOICES["trigrams"])
    """Whether trigrams are those of ``words``, or of the whole ``text`` (authors'
    code)."""
    urls: str = one_of(*CHOICES["urls"])
    """What is read of a URL: host and ``path``, or the part that the authors' ``code``
    keeps."""
    train_vectors: bool = False  # Train word and trigram vectors (section 4.3: yes)
    train_filters: bool = False  # Train the convolutions (paper: yes)
    weighted_trigram_depths: int = 3
    """Number of depths at which features of trigrams are weighted by IDF (authors'
    code: 2)."""
    trains_padding: bool = False
    """Whether to train the vector of padding (authors' code). Otherwise it is 0."""
    word2vec_length: bool = False
    """Whether word vectors of files other than word2vec's get the length that suits the
    softmax."""
    idf: str = one_of("relative", "classical", "phrases")
    """Weights of terms: ``relative`` ones are in [0, 1], ``classical`` ones are ln N/n
    (section 3.3), and ``phrases`` are those of the phrases and trigrams themselves
    instead of their words."""
    trigram_low: float = 0.0
    """Lower end of the range of initial trigram vectors, U[low, high] (section 4.3)."""
    trigram_high: float = 0.1
    keras_start: bool = False  # Other weights start as in Keras (section 4.3)
    phrase_dropout: float = 0.0
    """Share dropped in training of the dimensions of a text's term vectors, and of the
    outputs of each convolution (authors' code; in the paper tuned in 0 … 0.5)."""
    hidden: int = 32  # Units of the hidden layers (paper: 150)
    second_hidden: int = 0
    """Number of units of a second hidden layer (authors' code: 50). 0 means no such
    layer."""
    dropout: float = 0.1
    """Share of hidden units that are dropped in training (authors' code: none)."""
    query_words: int = 10  # Words of a query, at most (section 4.3)
    query_trigrams: int = 51  # Trigrams of a query, at most (section 4.3)
    post_words: int = 68  # Words of a post, at most (section 4.3)
    post_trigrams: int = 140  # Trigrams of a post, at most (section 4.3)
    url_trigrams: int = 120  # Trigrams of a URL, at most (section 4.3)

    def problems(self) -> Iterator[str]:
        """Yield a message for each impossible value and combination of values."""
        yield from super().problems()
        if self.url_presence and self.urls == "code":
            yield (
                "setting url_presence: found true with urls=code, whose placeholder "
                "stands for a missing URL; expected url_presence=false, or urls=path"
            )
        if self.trigrams == "text" and self.idf != "phrases":
            yield (
                f"setting idf: found {self.idf} with trigrams=text, which go across "
                "words and have an IDF of their own; expected idf=phrases, or "
                "trigrams=words"
            )

    def pooled_features(self) -> int:
        """Return K, the number of pooled similarities of a query position.

        All depths are counted.
        """
        return (self.max_pooling + self.mean_pooling) * (self.depth + 1)


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

AUTHORS = replace(
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
)
"""The configuration ``authors``."""

PAPER_SETTINGS = replace(
    RAO_2019,
    momentum=0.9,
    schedule="plateau",
    halve_after=2,
    precision="bf16",
)
"""The settings of section 4.3, with the momentum and the schedule of the authors' code.
The paper does not mention these two."""


class Perspective(NamedTuple):
    """An input of the query that is compared with an input of the post."""

    query_input: str
    post_input: str
    tower: str  # The tower that encodes both inputs
    query_length: int  # Greatest number of terms
    post_length: int
    width: int  # Terms under a filter
    weighted: int
    """Number of depths, from the embedding layer on, at which features are weighted by
    IDF."""


def perspectives_of(config: Config) -> dict[str, Perspective]:
    """Return name -> perspective for those that the configuration enables."""
    perspectives = {}
    if config.use_words:
        perspectives["words"] = Perspective(
            query_input=WORDS,
            post_input=WORDS,
            tower=WORDS,
            query_length=config.query_words,
            post_length=config.post_words,
            width=config.word_width,
            weighted=WEIGHTED_WORD_LEVELS,
        )
    post_trigrams = Perspective(
        query_input=TRIGRAMS,
        post_input=TRIGRAMS,
        tower=TRIGRAMS,
        query_length=config.query_trigrams,
        post_length=config.post_trigrams,
        width=config.trigram_width,
        weighted=config.weighted_trigram_depths,
    )
    if config.use_post_trigrams:
        perspectives["post_trigrams"] = post_trigrams
    if config.use_url_trigrams:
        perspectives["url_trigrams"] = post_trigrams._replace(
            post_input=URL_TRIGRAMS,
            tower=URL_TRIGRAMS if config.separate_urls else TRIGRAMS,
            post_length=config.url_trigrams,
        )
    return perspectives


class Phrases(NamedTuple):
    """A batch of encoded texts."""

    vectors: Mapping[tuple[str, str], Sequence[Tensor]]
    """(Tower, input) -> depth + 1 tensors [B, L, F], from terms to the longest phrases.
    For cosines, vectors have length 1."""
    terms: Inputs  # The terms, cut to the lengths that the model reads


class Model(Reranker):
    """The network of section 3; see the module's docstring."""

    has_matches = True
    configurations = named(
        robust=Config(),
        small=Config(word_filters=64, trigram_filters=32, depth=1),
        paper=PAPER,
        authors=AUTHORS,
    )
    configuration_settings = named(
        paper=PAPER_SETTINGS,
        authors=replace(
            PAPER_SETTINGS,
            batch_pairs=64,
            held_out=0.15,
            held_out_of="each",
        ),
    )
    query_inputs = (WORDS, TRIGRAMS)
    post_inputs = (WORDS, TRIGRAMS, URL_TRIGRAMS)

    mean_scale: ClassVar[float] = 5.0
    """Factor of mean similarities if there is no softmax. It makes them about as large
    as maxima."""

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        self.perspectives = perspectives_of(config)
        self.reading = Reading(config.tokens, config.trigrams, config.urls)
        self.idf = config.idf
        self.interactions_are_fixed = not (config.train_vectors or config.train_filters)
        # Up to fixed lengths, padding is a term like any other.
        self.reads_padding = config.normalization == "query"
        self.towers = self._towers(vocabulary)
        if config.evidence == "terms":
            self.position = self._position_networks()
        self.score = perceptron(
            self._evidence_size(),
            config.hidden,
            config.second_hidden or 1,
            config.dropout,
        )
        if config.second_hidden:
            self.score.append(nn.ReLU())
            self.score.append(nn.Linear(config.second_hidden, 1))
        if config.keras_start:
            _start_like_keras(self)

    def _position_networks(self) -> nn.ModuleDict:
        """Return a network of query positions for each perspective."""
        config = self.config
        networks = nn.ModuleDict()
        for name in self.perspectives:
            networks[name] = perceptron(
                config.pooled_features() + 1,  # And the weight of the position
                config.hidden,
                config.hidden // 2,
                config.dropout,
            )
        return networks

    def _evidence_size(self) -> int:
        """Return the number of values in the representation of a pair."""
        config = self.config
        if config.evidence == "terms":
            size = len(self.perspectives) * (config.hidden // 2)
        else:
            positions = 0
            for perspective in self.perspectives.values():
                positions += perspective.query_length
            size = config.pooled_features() * positions
        return size + config.url_presence

    def _towers(self, vocabulary: Vocabulary) -> nn.ModuleDict:
        """Return name -> tower. Towers of trigrams share their vectors."""
        config = self.config
        towers = nn.ModuleDict()
        if config.use_words:
            towers[WORDS] = self._word_tower(vocabulary)
        names = {perspective.tower for perspective in self.perspectives.values()}
        trigram_towers = names - {WORDS}
        if trigram_towers:
            vectors = self._trigram_vectors()
            for name in sorted(trigram_towers):
                towers[name] = self._tower(
                    vectors,
                    config.trigram_size,
                    config.trigram_filters,
                    config.trigram_width,
                )
        for name, parameter in towers.named_parameters():
            if "convolutions" in name:
                parameter.requires_grad_(config.train_filters)
        return towers

    def _tower(
        self,
        vectors: nn.Module,
        size: int,
        filters: int,
        width: int,
    ) -> ConvolutionTower:
        config = self.config
        return ConvolutionTower(
            vectors,
            size,
            filters,
            width,
            config.depth,
            self.reads_padding,
            config.phrase_dropout,
        )

    def _word_tower(self, vocabulary: Vocabulary) -> ConvolutionTower:
        config = self.config
        known = vocabulary.vectors
        if config.word2vec_length:
            known = of_word2vec_length(known)
        vectors: nn.Module
        if config.train_vectors:
            vectors = TrainedVectors(known, vocabulary.buckets, config.trains_padding)
        else:
            vectors = FrozenVectors(known, vocabulary.buckets)
        size = known.shape[1]
        return self._tower(
            vectors,
            size,
            config.word_filters,
            config.word_width,
        )

    def _trigram_vectors(self) -> nn.Module:
        config = self.config
        if not config.train_vectors:
            return HashedVectors(TRIGRAM_COUNT, config.trigram_size, seed=2)
        return TrainedVectors(
            np.zeros((0, config.trigram_size), np.float32),
            TRIGRAM_COUNT,
            config.trains_padding,
            config.trigram_low,
            config.trigram_high,
        )

    def encode(self, inputs: Inputs, side: str) -> Phrases:
        """Encode B texts at all depths.

        They are cut to the lengths that the model reads.
        """
        terms = dict(inputs)
        vectors: dict[tuple[str, str], list[Tensor]] = {}
        for perspective in self.perspectives.values():
            if side == QUERY:
                name = perspective.query_input
                most = perspective.query_length
            else:
                name = perspective.post_input
                most = perspective.post_length
            key = (perspective.tower, name)
            if key in vectors:  # Another perspective has the same input
                continue
            terms[name] = inputs[name].first(most)
            levels = self.towers[perspective.tower](terms[name].ids)
            if self.config.similarity == "cosine":
                levels = [unit_length(level) for level in levels]
            vectors[key] = levels
        return Phrases(vectors, terms)

    def interact(
        self,
        queries: Phrases,
        posts: Phrases,
        query_of_post: Tensor,
    ) -> Interactions:
        """Compute equation 1 for each perspective, and return :meth:`features`."""
        pooled = {}
        for name, perspective in self.perspectives.items():
            post_ids = posts.terms[perspective.post_input].ids
            counts = self._counts(post_ids, perspective.post_length)
            pooled[name] = [
                self._pooled(level, counts, perspective.post_length)
                for level in self.similarities(
                    queries,
                    posts,
                    query_of_post,
                    perspective,
                )
            ]
        url_lengths = posts.terms[URL_TRIGRAMS].lengths
        return self.features(
            pooled,
            queries.terms,
            query_of_post,
            url_lengths,
        )

    def _counts(self, ids: Tensor, most: int) -> Tensor:
        """Return the number of positions that each position of texts [B, L] stands for.

        It is 1 for a term and 0 for padding. If padding is read, the result is [B, L +
        1]: the first position after a text stands for all of its padding, up to the
        length ``most``.
        """
        lengths = ids.count_nonzero(dim=1).unsqueeze(1)
        places = torch.arange(ids.shape[1] + self.reads_padding, device=ids.device)
        counts = (places < lengths).float()
        if not self.reads_padding:
            return counts
        return counts + (places == lengths) * (most - lengths)

    def similarities(
        self,
        queries: Phrases,
        posts: Phrases,
        query_of_post: Tensor,
        perspective: Perspective,
    ) -> Iterator[Tensor]:
        """Yield the similarities [P, Lq, Ld] at each depth.

        They are taken after the softmax if there is one.
        """
        config = self.config
        tower = perspective.tower
        query_levels = queries.vectors[tower, perspective.query_input]
        post_levels = posts.vectors[tower, perspective.post_input]
        query_ids = queries.terms[perspective.query_input].ids
        counts = self._counts(query_ids, perspective.query_length)
        counts = counts[query_of_post].unsqueeze(2)  # [P, Lq, 1]
        post_mask = posts.terms[perspective.post_input].mask.unsqueeze(1)  # [P, 1, Ld]
        for query, post in zip(query_levels, post_levels, strict=True):
            values = torch.bmm(query[query_of_post], post.transpose(1, 2))
            if config.normalization == "query":
                values = _query_softmax(values * config.temperature, counts)
            elif config.normalization == "post":
                logits = values * config.temperature
                values = _post_softmax(logits, post_mask, perspective.post_length)
            yield values

    def _pooled(
        self,
        values: Tensor,
        counts: Tensor,
        post_length: int,
    ) -> Pooled:
        """Return the maximum and mean of similarities over each post.

        Both are 0 for a post without terms. ``counts`` [P, Ld] are those of
        :meth:`_counts`.
        """
        is_outside = counts.unsqueeze(1) == 0
        maximum = values.masked_fill(is_outside, -torch.inf).amax(dim=2)
        maximum = torch.where(
            counts.any(dim=1, keepdim=True),
            maximum,
            0.0,
        )
        total = torch.bmm(values, counts.unsqueeze(2)).squeeze(2)
        if self.config.normalization != "none":
            return Pooled(maximum, total / post_length)
        lengths = counts.sum(dim=1, keepdim=True).clamp_min(1.0)
        return Pooled(maximum, self.mean_scale * total / lengths)

    def features(
        self,
        pooled: Mapping[str, Sequence[Pooled]],
        queries: Inputs,
        query_of_post: Tensor,
        url_lengths: Tensor,
    ) -> Interactions:
        """Return the features of each query position, and the presence of a URL.

        Under the name of each perspective, the result has [P, Lq, K + 1]: the pooled
        similarities of each query position, and its weight. Under ``url_presence``, it
        has [P, 1, 1]: 1 for a post with a URL, else 0. ``pooled`` holds the
        similarities at each depth for each perspective. ``url_lengths`` [P] is the
        number of trigrams of each URL, or of the placeholder for it.
        """
        interactions = {}
        for name, perspective in self.perspectives.items():
            terms = queries[perspective.query_input]
            # If padding is read, there is one more position.
            positions = pooled[name][0].maximum.shape[1]
            missing = positions - terms.ids.shape[1]
            mask = F.pad(terms.mask, (0, missing))
            idf = F.pad(terms.weights, (0, missing))  # [Q, Lq]
            values = []
            for depth, level in enumerate(pooled[name]):
                weights = self._level_weights(
                    idf,
                    mask,
                    depth,
                    perspective,
                )
                for value in self._kept(level):
                    if weights is not None:
                        value = value * weights[query_of_post]
                    values.append(value)
            values.append((idf if self.config.idf_weights else mask)[query_of_post])
            features = torch.stack(values, dim=2)
            if self.reads_padding:
                lengths = terms.lengths[query_of_post]
                features = _repeat_padding(features, lengths, perspective.query_length)
            else:
                features = features * mask[query_of_post].unsqueeze(2)
            interactions[name] = features
        if self.config.url_presence:
            # Every real URL has more trigrams than the placeholder.
            has_url = url_lengths > len(URL_PLACEHOLDER)
            interactions["url_presence"] = has_url.float().view(-1, 1, 1)
        return interactions

    def _kept(self, level: Pooled) -> list[Tensor]:
        """Return the pooled similarities that the configuration keeps."""
        kept_values = []
        if self.config.max_pooling:
            kept_values.append(level.maximum)
        if self.config.mean_pooling:
            kept_values.append(level.mean)
        return kept_values

    def _level_weights(
        self,
        idf: Tensor,
        mask: Tensor,
        depth: int,
        perspective: Perspective,
    ) -> Tensor | None:
        """Return the IDF weights [Q, Lq] of features at one depth.

        Returns None if they are not weighted. If one network reads all positions, it
        reads the IDF instead.
        """
        if self.config.evidence != "positions" or not self.config.idf_weights:
            return None
        if depth >= perspective.weighted:
            return None
        return self._phrase_weights(
            idf,
            mask,
            depth,
            perspective.width,
        )

    def _phrase_weights(
        self,
        idf: Tensor,
        mask: Tensor,
        depth: int,
        width: int,
    ) -> Tensor:
        """Return the IDF [Q, Lq] of the phrase that starts at each position."""
        length = 1 + depth * (width - 1)
        if self.config.idf != "phrases":  # The mean of its terms
            sums = _sums_from(idf * mask, length)
            counts = _sums_from(mask, length)
            return sums / counts.clamp_min(1.0)
        # Take every (width - 1)-th term: all words, or trigrams that do not overlap.
        shifted = []
        for place in range(0, length, width - 1):
            shifted.append(F.pad(idf, (0, place))[:, place:])
        return torch.stack(shifted).sum(dim=0).clamp_max(RAREST)

    def represent(self, interactions: Interactions) -> Tensor:
        """Return the features [P, K] of all perspectives, concatenated.

        Source: section 3.4.
        """
        evidence = []
        for name, perspective in self.perspectives.items():
            features = interactions[name]
            if self.config.evidence == "terms":
                evidence.append(self._mean_over_positions(name, features))
            else:
                missing = perspective.query_length - features.shape[1]
                padded = pad_after(features[:, :, :-1], missing)
                evidence.append(padded.flatten(1))
        if self.config.url_presence:
            evidence.append(interactions["url_presence"].flatten(1))
        return torch.cat(evidence, dim=1)

    def _mean_over_positions(self, name: str, features: Tensor) -> Tensor:
        """Apply the network of positions, and average its outputs by weight.

        ``features`` [P, Lq, K + 1] become [P, K].
        """
        weights = features[:, :, -1]
        shares = weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-6)
        positions = self.position[name](features)
        return torch.bmm(shares.unsqueeze(1), positions).squeeze(1)

    @torch.no_grad()
    def fast_path(self, pairs: Tokenized) -> FastPath | None:
        """Return a form of the pairs that computes distinct spans only once.

        Returns None if only the forward pass can score them. The fast path is for the
        CPU, without a softmax, with one tower of trigrams, and for texts rather than
        cached interactions.
        """
        if pairs.cache_rows is not None:
            return None
        if self.config.normalization != "none" or self.config.separate_urls:
            return None
        if self.device_of().type not in devices.HOSTS:
            return None
        return FastPath(self, pairs)

    def explain(
        self,
        encoder: TextEncoder,
        pairs: Pairs,
        rows: Sequence[int],
    ) -> Explanation:
        """Return the best matches of the query's words in each post (Table 6)."""
        return explain(
            self,
            encoder,
            pairs,
            rows,
        )


def _sums_from(values: Tensor, length: int) -> Tensor:
    """Return the sums [Q, Lq] of ``length`` values from each position on.

    Values after the end are zeros.
    """
    padded = F.pad(values, (0, length - 1))
    return padded.unfold(1, length, 1).sum(dim=2)


def _repeat_padding(features: Tensor, lengths: Tensor, most: int) -> Tensor:
    """Repeat the position after each query up to ``most`` positions.

    ``features`` [P, Lq, K] become [P, most, K]. ``lengths`` [P] are those of the
    queries.
    """
    places = torch.arange(most, device=lengths.device)
    places = places.minimum(lengths.unsqueeze(1)).unsqueeze(2)  # [P, most, 1]
    return features.gather(1, places.expand(-1, -1, features.shape[2]))


def _query_softmax(logits: Tensor, counts: Tensor) -> Tensor:
    """Return the softmax over all positions of a query, for logits [P, Lq, Ld].

    The share of a position is divided among the positions that it stands for,
    ``counts`` [P, Lq, 1].
    """
    shares = (logits + counts.log()).softmax(dim=1)
    return torch.where(counts > 0, shares / counts.clamp_min(1.0), 0.0)


def _post_softmax(logits: Tensor, mask: Tensor, length: int) -> Tensor:
    """Return the softmax over ``length`` positions of a post, [P, Lq, Ld].

    It is 0 for padding. Positions without a term have the logit 0. ``logits`` are [P,
    Lq, Ld], and ``mask`` is [P, 1, Ld].
    """
    unused = (length - mask.sum(dim=2, keepdim=True)).log()  # Logit of as many e⁰
    logits = logits.masked_fill(mask == 0, -torch.inf)
    unused = unused.expand(-1, logits.shape[1], 1)
    shares = torch.cat([logits, unused], dim=2).softmax(dim=2)
    return shares[:, :, :-1]


def _start_like_keras(module: nn.Module) -> None:
    """Draw the weights of convolutions and linear layers as Keras does. Biases are 0.

    They are drawn from U[-b, b] with b² = 6 / (inputs + outputs) (Glorot & Bengio
    2010). A filter of ``width`` terms counts its inputs and outputs at every offset.
    """
    for layer in module.modules():
        if isinstance(layer, Convolution):
            inputs, outputs = layer.weight.shape
            bound = (6 / (inputs + layer.width * outputs)) ** 0.5
            nn.init.uniform_(layer.weight, -bound, bound)
        elif isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
