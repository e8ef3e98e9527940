"""Optimizers of large tables: sparse gradients, and a resumed state."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.reranking_samples import all_pairs, encoder, small_model

from rerankers.scoring.tokenized import Tokenized
from rerankers.training import optimizers
from rerankers.training.loop import EpochTrainer, Examples
from rerankers.training.optimizers import make_optimizer
from rerankers.training.settings import RAO_2019, Settings
from rerankers.training.state import History, copy_weights, load_state, save_state

SETTINGS = Settings(epochs=2, steps=3, batch_topics=2, positives=1, negatives=3)


def test_state_of_a_table_is_restored(tmp_path: Path) -> None:
    model = small_model("mp_hcnn", "paper", dropout=0.0)
    examples = Examples(Tokenized.from_pairs(all_pairs(), encoder(), model), np.arange(48) % 3 == 0)
    trainer = EpochTrainer(model, examples, SETTINGS)
    trainer.train_epoch(1)
    path = tmp_path / "state"
    save_state(path, model, trainer.optimizer, History(), copy_weights(model), SETTINGS)
    again = small_model("mp_hcnn", "paper", seed=8, dropout=0.0)
    resumed = EpochTrainer(again, examples, SETTINGS)
    load_state(path, again, resumed.optimizer, SETTINGS)
    for each in (trainer, resumed):
        each.train_epoch(2)
    for name, weight in copy_weights(model).items():
        assert torch.equal(copy_weights(again)[name], weight), name


def test_plain_gradient_descent_is_the_same_with_sparse_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large tables of DSSM are trained by them, with momentum they cannot be."""
    moved = []
    for smallest in (1, 10**9):
        monkeypatch.setattr(optimizers, "LARGE", smallest)
        model = small_model("dssm", "rao2019")
        optimizer = make_optimizer(model, RAO_2019)
        pairs = Tokenized.from_pairs(all_pairs(), encoder(), model)
        rows = np.arange(len(pairs.query_index))
        pairs.scores_of(model, rows, torch.device("cpu")).sum().backward()
        table = model.tower.trigrams.weight
        assert table.grad.is_sparse == (smallest == 1)
        optimizer.step()
        moved.append(table.detach().clone())
    torch.testing.assert_close(moved[0], moved[1])
    make_optimizer(model, Settings(optimizer="sgd"))
    assert not model.tower.trigrams.sparse
