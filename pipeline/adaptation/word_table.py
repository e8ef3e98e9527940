"""Fit word vectors so that their sums approximate a teacher's encodings of posts.

Let x be the counts of a post's words, divided by the square root of the number of
words. Let y be the post's encoding minus the mean encoding. The vectors V minimise

    Σ |x V − y|² + ridge · |V − G M|²

summed over posts. G are the general vectors of the words, and M is the linear map of
these vectors with the smallest error. As a result, words that are rare in the posts
stay close to their general meaning. The minimum is found by conjugate gradients with a
diagonal preconditioner.

Wieting et al. (ICLR 2016) represent sentences by averages of word vectors. Here a
transformer is the teacher, as in knowledge distillation (Hinton et al. 2015).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.stats import rankdata

from tweetrerank.indexes.data_error import DataError
from tweetrerank.rerankers.features.meaning import unit
from tweetrerank.rerankers.model import Progress, silent
from tweetrerank.rerankers.text.lexicon import Lexicon
from tweetrerank.rerankers.text.spaces import AdaptedSpace, general, quantized

Array = npt.NDArray[np.float32]

RIDGE = 0.1
ROUNDS = 25  # Rounds of conjugate gradients
FEW_POSTS = 20_000
"""Up to this number of posts, every word gets a vector. With more posts, only words
that occur in two posts or more get one."""

HELD_OUT = 500  # Posts held out by a check: a tenth, at most this many
COMPARED = 1000  # At most this many posts are ranked for each held-out post


def fit(
    texts: Sequence[str],
    encodings: npt.NDArray[np.floating],
    progress: Progress = silent,
    ridge: float = RIDGE,
) -> AdaptedSpace:
    """Fit word vectors to the encodings [N, E] of N posts.

    An encoding has unit length, or is 0 to leave its post out. ``progress`` is called
    with 1 after each of the :data:`ROUNDS`. ``ridge`` is the strength of the pull
    towards the general vectors. Raises DataError if no post has both words and an
    encoding.
    """
    lexicon = Lexicon.from_texts(texts)
    matrix = _counts(lexicon)
    is_usable = (encodings != 0).any(axis=1) & (lexicon.texts.lengths > 0)
    if not is_usable.any():
        raise DataError(
            f"found no posts with words among {len(texts)}, expected one at least"
        )
    matrix = matrix[is_usable]
    targets = encodings[is_usable].astype(np.float32)
    targets -= targets.mean(axis=0)
    mapped = matrix @ general().vectors(lexicon.words)
    square = mapped.T @ mapped + ridge * np.eye(mapped.shape[1], dtype=np.float32)
    linear = np.linalg.solve(square, mapped.T @ targets).astype(np.float32)
    least = 1 if len(targets) <= FEW_POSTS else 2
    frequencies = np.asarray((matrix > 0).sum(axis=0)).ravel()
    frequent = np.flatnonzero(frequencies >= least)
    matrix = matrix[:, frequent]
    added = _ridge(matrix, targets - mapped @ linear, ridge, progress)
    words = [lexicon.words[row] for row in frequent.tolist()]
    return AdaptedSpace(words, *quantized(added), linear)


def check(
    texts: Sequence[str],
    encodings: npt.NDArray[np.floating],
    progress: Progress = silent,
) -> tuple[float, float]:
    """Fit to all but a few posts, and compare the fit with the teacher on these.

    Returns:
        (explained, ρ). ``explained`` is the share of the variance of the held-out
        posts' encodings that the fit explains. ρ is Spearman's correlation between the
        order of other posts by the teacher and by the fit, averaged over the held-out
        posts as queries.
    """
    order = np.random.default_rng(1).permutation(len(texts))
    count = min(HELD_OUT, -(-len(texts) // 10))
    held_out, others = np.split(order, [count])
    space = fit([texts[row] for row in others.tolist()], encodings[others], progress)
    center = encodings[others].mean(axis=0, dtype=np.float32)

    def fitted_and_targets(rows: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        lexicon = Lexicon.from_texts([texts[row] for row in rows.tolist()])
        fitted = _counts(lexicon) @ space.vectors(lexicon.words)
        return fitted, encodings[rows].astype(np.float32) - center

    fitted, targets = fitted_and_targets(held_out)
    variance = np.square(targets).sum()
    explained = 1 - np.square(targets - fitted).sum() / max(variance, 1e-9)
    fitted_others, target_others = fitted_and_targets(others[:COMPARED])
    teacher = _centred_ranks(targets, target_others)
    ours = _centred_ranks(fitted, fitted_others)
    return float(explained), float((teacher * ours).sum(axis=1).mean())


def _centred_ranks(queries: Array, posts: Array) -> Array:
    """Return the ranks of posts by their cosine to each query.

    The ranks of each query are a centred vector of unit length, so that the product of
    two such vectors is Spearman's ρ.
    """
    ranks = rankdata(unit(queries) @ unit(posts).T, axis=1)
    return unit(ranks - ranks.mean(axis=1, keepdims=True))


def _counts(lexicon: Lexicon) -> sparse.csr_array:
    """Return the counts of words [N, V].

    They are divided by the square root of the number of words in the post.
    """
    texts = lexicon.texts
    weights = 1 / np.sqrt(np.maximum(texts.lengths, 1)).astype(np.float32)
    entries = (np.repeat(weights, texts.lengths), texts.values, texts.starts)
    counts = sparse.csr_array(entries, shape=(len(texts), len(lexicon.words)))
    counts.sum_duplicates()
    return counts


def _ridge(
    matrix: sparse.csr_array, targets: Array, ridge: float, progress: Progress
) -> Array:
    """Return the vectors [V, E] of a ridge regression."""
    transposed = matrix.T.tocsr()
    diagonal = np.asarray(matrix.multiply(matrix).sum(axis=0)).ravel() + ridge
    vectors = np.zeros((matrix.shape[1], targets.shape[1]), dtype=np.float32)
    residual = transposed @ targets
    scaled = residual / diagonal[:, None]
    direction = scaled.copy()
    product = (residual * scaled).sum(axis=0)
    for _ in range(ROUNDS):
        change = transposed @ (matrix @ direction) + ridge * direction
        step = product / np.maximum((direction * change).sum(axis=0), 1e-20)
        vectors += step * direction
        residual -= step * change
        scaled = residual / diagonal[:, None]
        before = product
        product = (residual * scaled).sum(axis=0)
        direction = scaled + product / np.maximum(before, 1e-20) * direction
        progress(1)
    return vectors
