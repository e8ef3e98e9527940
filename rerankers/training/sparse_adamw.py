"""AdamW that moves only those rows of a large table of vectors that a step has read.

A step reads a few thousand of the vectors of words and trigrams. Adam over the whole table costs
as much as the rest of the step, for rows whose gradient is 0.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

LARGE = 20_000
"""Rows from which on a table is moved by rows; a smaller one is moved as a whole, which is faster
below about 10,000."""


def read_by_rows(model: nn.Module, wanted: bool) -> None:
    """Have the large tables of ``model`` give sparse gradients, or all of them dense ones."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = wanted and module.num_embeddings >= LARGE


class SparseAdamW(torch.optim.AdamW):
    """AdamW (Loshchilov & Hutter, ICLR 2019), but for tables whose gradient is sparse.

    A row that has no gradient in a step neither moves nor decays in it, nor do its running means;
    these are corrected for their start by the number of the table's steps, not of the row's. That
    is what ``torch.optim.SparseAdam`` does, which knows no decay. Where every row has a gradient
    in every step it is AdamW.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; sparse gradients are used up: afterwards they are None."""
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None and table.grad.is_sparse:
                    self._move_rows(table, group)
                    table.grad = None  # PyTorch's AdamW refuses it.
        return super().step(closure)

    def _move_rows(self, table: Tensor, group: dict[str, Any]) -> None:
        assert table.grad is not None
        gradient = table.grad.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        state = self.state[table]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(table), torch.zeros_like(table)
        state["step"] += 1
        step, rate, (beta1, beta2) = state["step"].item(), group["lr"], group["betas"]
        mean = state["exp_avg"][rows].lerp_(values, 1 - beta1)
        square = state["exp_avg_sq"][rows].mul_(beta2).addcmul_(values, values, value=1 - beta2)
        state["exp_avg"][rows], state["exp_avg_sq"][rows] = mean, square
        spread = square.div_(1 - beta2**step).sqrt_().add_(group["eps"])
        decayed = table[rows].mul_(1 - rate * group["weight_decay"])
        table[rows] = decayed.addcdiv_(mean, spread, value=-rate / (1 - beta1**step))


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], longest: float) -> None:
    """Shrink all gradients alike so that together they are at most ``longest`` (Euclidean).

    As ``torch.nn.utils.clip_grad_norm_``, which does not take sparse ones.
    """
    gradients = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            # What a row got from several places must be added up before it is measured.
            parameter.grad = parameter.grad.coalesce()
            gradients.append(parameter.grad.values())
        elif parameter.grad is not None:
            gradients.append(parameter.grad)
    if not gradients:
        return
    lengths = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    share = (longest / (torch.linalg.vector_norm(torch.stack(lengths)) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(share)
