"""AdamW and Nesterov with sparse gradients against PyTorch's optimizers and a loop over rows."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from helpers.reranking_samples import all_pairs, encoder, small_model
from torch import Tensor, nn

from rerankers.networks.inputs import Tokenized
from rerankers.networks.training import optimizers
from rerankers.networks.training.optimizers import (
    LazyNesterov,
    SparseAdamW,
    clip_gradients,
    make_optimizer,
)
from rerankers.networks.training.settings import Settings

RATE, DECAY = 0.05, 0.2


def table_of(rows: int, sparse: bool) -> nn.Embedding:
    torch.manual_seed(1)
    return nn.Embedding(rows, 3, sparse=sparse)


def train_table(
    table: nn.Embedding, optimizer: torch.optim.Optimizer, steps: Sequence[Tensor]
) -> Tensor:
    """The table after a step for each tensor of identifiers in ``steps``."""
    rng = np.random.default_rng(2)
    for ids in steps:
        pull = torch.from_numpy(rng.normal(size=(len(ids), 3)).astype(np.float32))
        optimizer.zero_grad()
        (table(ids) * pull).sum().backward()
        optimizer.step()
    return table.weight.detach()


def test_equals_adamw_if_every_row_is_read() -> None:
    steps = [torch.tensor(ids) for ids in ([0, 1, 2, 3], [3, 2, 1, 0, 0, 0], [1, 1, 2, 3, 0])]
    dense, sparse = table_of(4, sparse=False), table_of(4, sparse=True)
    expected = train_table(
        dense, torch.optim.AdamW(dense.parameters(), RATE, weight_decay=DECAY), steps
    )
    ours = SparseAdamW(sparse.parameters(), RATE, weight_decay=DECAY)
    torch.testing.assert_close(train_table(sparse, ours, steps), expected, rtol=1e-5, atol=1e-6)


def test_lazy_rows_move_as_with_pytorchs_momentum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that no step reads, and a change of the rate between two epochs."""
    monkeypatch.setattr(optimizers, "LARGE", 1)
    steps = [torch.tensor(ids) for ids in ([0, 2, 2], [4, 0], [2], [5], [0, 4, 4, 4], [5], [4])]
    dense, lazy = table_of(6, sparse=False), table_of(6, sparse=True)
    expected = torch.optim.SGD(dense.parameters(), RATE, 0.9, nesterov=True)
    ours = LazyNesterov(lazy, RATE, 0.9)
    for rate in (RATE, RATE / 2):
        expected.param_groups[0]["lr"] = ours.param_groups[0]["lr"] = rate
        plain = train_table(dense, expected, steps)
        with ours.reading():
            found = train_table(lazy, ours, steps)
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)
    velocities = [
        optimizer.state[table.weight]["momentum_buffer"]
        for optimizer, table in ((ours, lazy), (expected, dense))
    ]
    torch.testing.assert_close(*velocities, rtol=1e-5, atol=1e-6)


def test_rows_move_and_decay_only_when_they_are_read() -> None:
    table, start = table_of(5, sparse=True), table_of(5, sparse=True).weight
    ours, found = SparseAdamW(table.parameters(), RATE, weight_decay=DECAY), start
    for ids in ([0, 2, 2], [4, 0], [2], [0, 4, 4, 4]):
        before = found.clone()
        found = train_table(table, ours, [torch.tensor(ids)])
        moved = (found != before).all(dim=1).tolist()
        assert moved == [row in ids for row in range(5)]
        assert moved == (found != before).any(dim=1).tolist()


@pytest.mark.parametrize("longest", [0.5, 5.0, 1e6])
def test_sparse_gradients_are_clipped_like_dense_ones(longest: float) -> None:
    """Contributions to one row are added up first, so some cancel."""
    ids = torch.tensor([1, 4, 1, 1, 3])
    pull = torch.tensor([[5.0], [1.0], [-5.0], [2.0], [-3.0]])
    gradients = []
    for sparse in (False, True):
        table, other = table_of(6, sparse), nn.Parameter(torch.ones(4))
        ((table(ids) * pull).sum() + 2 * other.sum()).backward()
        parameters = [table.weight, other, nn.Parameter(torch.ones(2))]
        if sparse:
            clip_gradients(iter(parameters), longest)
        else:
            torch.nn.utils.clip_grad_norm_(parameters, longest)
        assert table.weight.grad is not None and other.grad is not None
        assert table.weight.grad.is_sparse == sparse
        gradients.append((table.weight.grad.to_dense(), other.grad))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-6)
    clip_gradients([nn.Parameter(torch.ones(2))], longest)


def test_plain_gradient_descent_is_the_same_with_sparse_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large tables of DSSM are trained by them, with momentum they cannot be."""
    moved = []
    for smallest in (1, 10**9):
        monkeypatch.setattr(optimizers, "LARGE", smallest)
        model = small_model("dssm", "rao2019")
        optimizer = make_optimizer(model, Settings(optimizer="sgd", momentum=0.0, weight_decay=0.0))
        pairs = Tokenized.from_pairs(all_pairs(), encoder(), model)
        rows = np.arange(len(pairs.query_index))
        pairs.scores_of(model, rows).sum().backward()
        table = model.tower.trigrams.weight
        assert table.grad.is_sparse == (smallest == 1)
        optimizer.step()
        moved.append(table.detach().clone())
    torch.testing.assert_close(moved[0], moved[1])
    make_optimizer(model, Settings(optimizer="sgd"))
    assert not model.tower.trigrams.sparse
