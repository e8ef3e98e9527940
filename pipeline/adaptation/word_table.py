"""Word vectors whose sums are as near as possible to a teacher's encodings of posts.

With x the counts of a post's words divided by the square root of their number, the vectors V
minimise ``Σ |x V − y|² + ridge · |V − G M|²`` over posts, where y is the post's encoding minus the
mean encoding, G the words' general vectors and M the linear map that alone comes nearest:
words that posts say little about stay close to their general meaning. The minimum is found by
conjugate gradients with a diagonal preconditioner. Averages of word vectors as sentences are those
of Wieting et al. (ICLR 2016); here a transformer is the teacher, as in knowledge distillation
(Hinton et al. 2015).
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
ROUNDS = 25  # Of conjugate gradients
FEW_POSTS = 20_000
"""Up to so many posts every word has a vector of its own; with more, words of two posts or more."""

HELD_OUT = 500  # Posts that a check holds out, at most; a tenth of few posts
COMPARED = 1000  # Posts that a check ranks for each of them, at most


def fit(
    texts: Sequence[str],
    encodings: npt.NDArray[np.floating],
    progress: Progress = silent,
    ridge: float = RIDGE,
) -> AdaptedSpace:
    """Fit word vectors to the encodings [N, E] of N posts: of length 1, 0 for one to leave out.
    ``progress`` is called with 1 after each of :data:`ROUNDS`; ``ridge`` is the strength of the
    pull towards the general vectors. DataError: no post has words and an encoding."""
    lexicon = Lexicon.from_texts(texts)
    matrix = _counts(lexicon)
    known = (encodings != 0).any(axis=1) & (lexicon.texts.lengths > 0)
    if not known.any():
        raise DataError(
            f"found no posts with words among {len(texts)}, expected one at least"
        )
    matrix, targets = matrix[known], encodings[known].astype(np.float32)
    targets -= targets.mean(axis=0)
    mapped = matrix @ general().vectors(lexicon.words)
    square = mapped.T @ mapped + ridge * np.eye(mapped.shape[1], dtype=np.float32)
    linear = np.linalg.solve(square, mapped.T @ targets).astype(np.float32)
    least = 1 if len(targets) <= FEW_POSTS else 2
    often = np.flatnonzero(np.asarray((matrix > 0).sum(axis=0)).ravel() >= least)
    matrix = matrix[:, often]
    added = _ridge(matrix, targets - mapped @ linear, ridge, progress)
    return AdaptedSpace(
        [lexicon.words[row] for row in often.tolist()], *quantized(added), linear
    )


def check(
    texts: Sequence[str],
    encodings: npt.NDArray[np.floating],
    progress: Progress = silent,
) -> tuple[float, float]:
    """Fit to all but a few posts, and compare with the teacher on these: share of the variance of
    their encodings that is explained, and Spearman's ρ of the teacher's and the fit's order of
    other posts, mean over held-out posts as queries."""
    order = np.random.default_rng(1).permutation(len(texts))
    held_out, others = np.split(order, [min(HELD_OUT, -(-len(texts) // 10))])
    space = fit([texts[row] for row in others.tolist()], encodings[others], progress)
    center = encodings[others].mean(axis=0, dtype=np.float32)

    def both(rows: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        lexicon = Lexicon.from_texts([texts[row] for row in rows.tolist()])
        fitted = _counts(lexicon) @ space.vectors(lexicon.words)
        return fitted, encodings[rows].astype(np.float32) - center

    fitted, targets = both(held_out)
    explained = 1 - np.square(targets - fitted).sum() / max(
        np.square(targets).sum(), 1e-9
    )
    fitted_others, target_others = both(others[:COMPARED])
    pairs = ((targets, target_others), (fitted, fitted_others))
    ranks = [rankdata(unit(a) @ unit(b).T, axis=1) for a, b in pairs]
    teacher, ours = (unit(r - r.mean(axis=1, keepdims=True)) for r in ranks)
    return float(explained), float((teacher * ours).sum(axis=1).mean())


def _counts(lexicon: Lexicon) -> sparse.csr_array:
    """[N, V] counts of words, divided by the square root of each post's number of words."""
    texts = lexicon.texts
    weights = 1 / np.sqrt(np.maximum(texts.lengths, 1)).astype(np.float32)
    entries = (np.repeat(weights, texts.lengths), texts.values, texts.starts)
    found = sparse.csr_array(entries, shape=(len(texts), len(lexicon.words)))
    found.sum_duplicates()
    return found


def _ridge(
    matrix: sparse.csr_array, targets: Array, ridge: float, progress: Progress
) -> Array:
    """The vectors [V, E] that minimise ``|matrix · vectors − targets|² + ridge · |vectors|²``."""
    turned = matrix.T.tocsr()
    diagonal = np.asarray(matrix.multiply(matrix).sum(axis=0)).ravel() + ridge
    vectors = np.zeros((matrix.shape[1], targets.shape[1]), dtype=np.float32)
    left = turned @ targets
    scaled = left / diagonal[:, None]
    direction, product = scaled.copy(), (left * scaled).sum(axis=0)
    for _ in range(ROUNDS):
        moved = turned @ (matrix @ direction) + ridge * direction
        step = product / np.maximum((direction * moved).sum(axis=0), 1e-20)
        vectors += step * direction
        left -= step * moved
        scaled = left / diagonal[:, None]
        before, product = product, (left * scaled).sum(axis=0)
        direction = scaled + product / np.maximum(before, 1e-20) * direction
        progress(1)
    return vectors
