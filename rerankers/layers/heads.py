"""Last layers: from a representation of a pair to its score."""

import torch
from torch import Tensor, nn


def perceptron(inputs: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    """Two linear layers with a ReLU between them (Rao et al. 2019, section 3.4)."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outputs)
    )


def bounded(scores: Tensor, bound: float) -> Tensor:
    """Scores of any shape, limited to (-bound, bound) by tanh; about linear near 0."""
    return bound * torch.tanh(scores / bound)
