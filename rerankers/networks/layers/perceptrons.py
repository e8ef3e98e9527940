"""Linear layers, perceptrons, and limits for their scores."""

import torch
from torch import Tensor, nn


def xavier_linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear layer with Xavier's uniform distribution and a bias of 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def perceptron(
    inputs: int,
    hidden: int,
    outputs: int,
    dropout: float,
) -> nn.Sequential:
    """Return two linear layers with a ReLU between them.

    Source: Rao et al. (2019), section 3.4.
    """
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, outputs),
    )


def bounded(scores: Tensor) -> Tensor:
    """Limit scores of any shape to (-10, 10) by tanh. Near 0 they hardly change."""
    return 10.0 * torch.tanh(scores / 10.0)
