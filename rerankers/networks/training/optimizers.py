"""Optimizers, among them AdamW and Nesterov for sparse gradients of large embedding tables.

A step reads a few thousand of the vectors of words and trigrams. Adam over the whole table costs
as much as the rest of the step, for rows with a gradient of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rerankers.devices import is_host
from rerankers.networks.base import Reranker
from rerankers.networks.models.dssm import TrigramSums
from rerankers.networks.training.settings import Settings

LARGE = 20_000
"""Rows of a table from which on its gradients are sparse; below about 10,000 dense ones are
faster."""


def make_optimizer(model: Reranker, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer of the settings; parameters are grouped by their share of the weight decay."""
    rate, momentum = settings.learning_rate, settings.momentum
    is_free = settings.optimizer == "sgd" and not settings.weight_decay
    is_plain = is_free and momentum == 0
    for module in model.modules():
        if isinstance(module, nn.Embedding | TrigramSums):
            takes_sparse = is_plain or settings.optimizer == "adamw"
            module.sparse = takes_sparse and len(module.weight) >= LARGE
    # With a momentum, rows without a gradient move on by a rule that takes one rate for an epoch.
    # A GPU moves whole tables in less time than it takes to count the rows of a step.
    if is_free and momentum and settings.schedule != "linear" and is_host(model.device_of()):
        return LazyNesterov(model, rate, momentum)
    shares: dict[float, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            shares.setdefault(model.decay_share(name), []).append(parameter)
    groups = [
        {"params": parameters, "weight_decay": settings.weight_decay * share}
        for share, parameters in shares.items()
    ]
    match settings.optimizer:
        case "sgd":
            # One pass over weights and gradients, a third of the time; dense gradients only.
            fused = not is_plain
            return torch.optim.SGD(groups, rate, momentum, nesterov=momentum > 0, fused=fused)
        case "adadelta":
            return torch.optim.Adadelta(groups, lr=rate, rho=0.95)
        case "adagrad":
            return torch.optim.Adagrad(groups, lr=rate)
        case "rmsprop":
            return torch.optim.RMSprop(groups, lr=rate)
    return SparseAdamW(groups, lr=rate)


class LazyNesterov(torch.optim.SGD):
    """Nesterov's momentum, without decay, for which a row of a large table moves when it is read.

    In k steps without a gradient a row of velocity v moves by ``rate · v · μ² (1 - μᵏ) / (1 - μ)``
    and v becomes ``μᵏ v``. So inside :meth:`reading` the result of ``torch.optim.SGD`` takes work
    for the rows of a step only; the rate must not change there.
    """

    def __init__(self, model: nn.Module, rate: float, momentum: float) -> None:
        tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
        self._tables = [m for m in tables if m.weight.requires_grad and len(m.weight) >= LARGE]
        trained = [p for p in model.parameters() if p.requires_grad]
        super().__init__(trained, rate, momentum, nesterov=True)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Steps are taken inside; afterwards all rows have moved."""
        hooks = []
        for table in self._tables:
            table.sparse = True
            velocity = self.state[table.weight].get("momentum_buffer")
            if velocity is None:
                self.state[table.weight]["momentum_buffer"] = torch.zeros_like(table.weight)
            self.state[table.weight]["moved"] = torch.zeros(
                len(table.weight), dtype=torch.int64, device=table.weight.device
            )
            hooks.append(table.register_forward_pre_hook(self._before_reading))
        self._steps = 0
        try:
            yield
        finally:
            for table, hook in zip(self._tables, hooks, strict=True):
                hook.remove()
                everything = torch.arange(len(table.weight), device=table.weight.device)
                self._move(table.weight, everything)
                del self.state[table.weight]["moved"]

    def _before_reading(self, table: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        assert isinstance(table, nn.Embedding)
        self._move(table.weight, arguments[0].unique())

    @torch.no_grad()
    def _move(self, table: Tensor, rows: Tensor) -> None:
        """Bring distinct ``rows`` to the present step."""
        group, state = self.param_groups[0], self.state[table]
        momentum, missed = group["momentum"], self._steps - state["moved"][rows]
        rows, missed = rows[missed > 0], missed[missed > 0]
        share = (momentum ** missed.to(table.dtype)).unsqueeze(1)
        velocity = state["momentum_buffer"][rows]
        way = group["lr"] * momentum**2 / (1 - momentum)
        table.index_add_(0, rows, velocity * (1 - share), alpha=-way)
        state["momentum_buffer"][rows] = velocity * share
        state["moved"][rows] = self._steps

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; gradients of the large tables are None afterwards."""
        group, self._steps = self.param_groups[0], self._steps + 1
        for table in (module.weight for module in self._tables):
            if table.grad is None:
                continue
            gradient = table.grad.coalesce()
            rows, values = gradient.indices()[0], gradient.values()
            state = self.state[table]
            velocity = state["momentum_buffer"][rows].mul_(group["momentum"]).add_(values)
            state["momentum_buffer"][rows], state["moved"][rows] = velocity, self._steps
            values = values.add(velocity, alpha=group["momentum"])
            table.index_add_(0, rows, values, alpha=-group["lr"])
            table.grad = None  # The rest is PyTorch's.
        return super().step(closure)


class SparseAdamW(torch.optim.AdamW):
    """AdamW (Loshchilov & Hutter, ICLR 2019) that also takes sparse gradients.

    A row without a gradient in a step neither moves nor decays, and its running means stay; bias
    correction counts the table's steps, not the row's. ``torch.optim.SparseAdam`` does the same
    without decay. If every row has a gradient in every step, the result is AdamW's.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; sparse gradients are None afterwards."""
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
    """Scale all gradients by one factor, to a joint Euclidean norm of at most ``longest``.

    Like ``torch.nn.utils.clip_grad_norm_``, which does not take sparse gradients.
    """
    gradients = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            # Contributions to one row must be added up before its norm is taken.
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
