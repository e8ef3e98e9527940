"""Folds of topics, and the rerankers of a fusion."""

import numpy as np

from pipeline.training.folds import split_topics


def test_folds_hold_every_topic_out_once() -> None:
    query_index = np.repeat(np.arange(11), 3)
    folds = list(split_topics(query_index, 4, seed=1))
    held_out = np.concatenate([np.unique(query_index[fold.held_out]) for fold in folds])
    assert sorted(held_out.tolist()) == list(range(11))
    for fold in folds:
        assert not set(query_index[fold.held_out]) & set(query_index[fold.training])
        assert len(fold.held_out) + len(fold.training) == len(query_index)
    groups = ["a"] * 10 + ["b"] * 10
    (each,) = split_topics(np.arange(20), 1, 1, 0.2, groups)
    assert sorted(each.held_out < 10) == [False] * 2 + [True] * 2
    (single,) = split_topics(query_index, 1, seed=1)
    assert len(np.unique(query_index[single.held_out])) == 2
