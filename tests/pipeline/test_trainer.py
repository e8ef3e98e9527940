"""Folds of topics."""

import numpy as np

from pipeline.training.folds import split_topics


def test_a_share_of_every_group_is_held_out() -> None:
    groups = ["a"] * 10 + ["b"] * 10
    (each,) = split_topics(np.arange(20), 1, 1, 0.2, groups)
    assert sorted(each.held_out < 10) == [False] * 2 + [True] * 2
