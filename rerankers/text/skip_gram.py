"""Training of word vectors on one's own posts: skip-grams with negative sampling.

Tomas Mikolov et al.: *Distributed Representations of Words and Phrases and their
Compositionality*, NIPS 2013; used on tweets by Severyn & Moschitti (2015, section 4.2). The
implementation is gensim's, on one thread, so that the same posts give the same vectors.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rerankers.errors import RerankerError
from rerankers.text.inputs import Lexicon
from rerankers.text.vectors import WordVectors


def train(
    texts: Sequence[str],
    size: int = 100,
    window: int = 8,
    minimum_count: int = 3,
    epochs: int = 8,
    seed: int = 1,
    progress: Callable[[int], None] = lambda epochs_done: None,
) -> WordVectors:
    """Train vectors of the words of ``texts``.

    Args:
        size: dimensions of a vector.
        window: words on each side that a word predicts.
        minimum_count: occurrences that a word needs to get a vector.
        epochs: passes over the texts.
        seed: of the initial weights and the negative samples.
        progress: called after each epoch with 1.

    Raises:
        RerankerError: gensim is not installed, or no word is frequent enough.
    """
    try:
        from gensim.models import Word2Vec
        from gensim.models.callbacks import CallbackAny2Vec
    except ImportError:
        raise RerankerError(
            "found no gensim, which trains word vectors; install it by "
            '`pip install "tweetrerank[vectors]"`, or name existing `vectors`'
        ) from None

    class Report(CallbackAny2Vec):
        def on_epoch_end(self, model: Any) -> None:
            progress(1)

    lexicon = Lexicon.from_texts(texts)
    words = np.array(lexicon.words, dtype=object)[lexicon.texts.values]
    sentences = [part.tolist() for part in np.split(words, lexicon.texts.starts[1:-1])]
    try:
        model = Word2Vec(
            sentences,
            vector_size=size,
            window=window,
            min_count=minimum_count,
            sg=1,
            negative=10,
            epochs=epochs,
            workers=1,
            seed=seed,
            callbacks=[Report()],
        )
    except RuntimeError as error:
        raise RerankerError(
            f"found no vectors to train ({error}), expected posts with words that occur "
            f"{minimum_count} times or more"
        ) from None
    return WordVectors(list(model.wv.index_to_key), model.wv.vectors.astype(np.float32))
