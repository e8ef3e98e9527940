"""State of unfinished training on disk: model, optimizer, best weights and history."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rerankers.base import Reranker
from rerankers.errors import RerankerError
from rerankers.training.settings import Settings


@dataclasses.dataclass
class History:
    """Training so far."""

    epochs: list[dict[str, float]] = dataclasses.field(default_factory=list)
    """Figures of each epoch."""
    best: int = 0  # Number of the best epoch, from 1; 0 before the first
    setbacks: int = 0  # Times that epochs without a better validation figure halved the rate


def copy_weights(model: Reranker) -> dict[str, Tensor]:
    """A copy of the model's state dict."""
    return {key: value.detach().clone() for key, value in model.state_dict().items()}


def save_state(
    path: Path,
    model: Reranker,
    optimizer: torch.optim.Optimizer,
    history: History,
    best: Mapping[str, Tensor],
    settings: Settings,
) -> None:
    """Write the state of training atomically."""
    tensors = {f"model.{key}": value for key, value in model.state_dict().items()}
    tensors |= {f"best.{key}": value for key, value in best.items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in state.items()}
    metadata = {
        "history": json.dumps(dataclasses.asdict(history)),
        "settings": json.dumps(dataclasses.asdict(settings)),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    try:
        contiguous = {key: value.cpu().clone().contiguous() for key, value in tensors.items()}
        save_file(contiguous, temporary, metadata)
        with Path(temporary).open("rb") as stream:
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def load_state(
    path: Path, model: Reranker, optimizer: torch.optim.Optimizer, settings: Settings
) -> tuple[History, dict[str, Tensor]]:
    """Restore ``model`` and ``optimizer``; returns the history and the best weights.

    Raises:
        RerankerError: the file is damaged, or of other settings or another model.
    """
    device = str(model.device_of())
    try:
        with safe_open(path, "pt", device=device) as file:
            metadata: dict[str, Any] = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        history = History(**json.loads(metadata["history"]))
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise RerankerError(
            f"{path}: the interrupted training cannot be read ({error}); "
            "start again without `resume`"
        ) from None
    if json.loads(metadata["settings"]) != dataclasses.asdict(settings):
        raise RerankerError(
            f"{path}: the interrupted training had other settings ({metadata['settings']}); "
            "repeat them, or start again without `resume`"
        )
    try:
        model.load_state_dict(_with_prefix(tensors, "model."))
    except RuntimeError:
        raise RerankerError(
            f"{path}: the interrupted training was of a model of other sizes; "
            "repeat its configuration, or start again without `resume`"
        ) from None
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in _with_prefix(tensors, "optimizer.").items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    return history, _with_prefix(tensors, "best.")


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
