"""Networks on a GPU beside the CPU: from texts to scores, and training."""

import copy
import dataclasses
import time
from functools import partial

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode, addmm_flop

from benchmarks.measuring import Row, alternate, compared, printed
from benchmarks.workload import Workload
from rerankers import checkpoint
from rerankers.base import Reranker
from rerankers.models import mp_hcnn
from rerankers.scoring.batches import score
from rerankers.scoring.tokenized import Tokenized
from rerankers.text.inputs import TextEncoder
from rerankers.text.vocabulary import Vocabulary
from rerankers.training.examples import Examples
from rerankers.training.loop import EpochTrainer

TOLERANCE = 1e-4  # Largest difference of a score in single precision
SIZE = 8192  # Rows of the matrices whose product has the device's peak
STEPS = 20  # Training steps of a measurement
PAPER_VECTOR_SIZE = 300  # Size of MP-HCNN's word vectors in the paper (section 4.3)

CPU = torch.device("cpu")


def measure(workload: Workload) -> list[Row]:
    """Pairs/s and steps/s."""
    if workload.device == "cpu" and not workload.is_chosen:
        print("found no GPU, so nothing is measured; --device cpu has the CPU in its place")
        return []
    device = torch.device(workload.device)
    if device.type == "cuda":
        print(f"GPU: {torch.cuda.get_device_name(device)}")
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    peaks = {name: _peak(device, kind) for name, kind in kinds.items()}
    rows = [
        (f"large matrix product, {workload.device}, {name}", f"{peak / 1e12:,.2f} TFLOP/s")
        for name, peak in peaks.items()
    ]
    printed(rows)
    shipped = workload.checkpoint
    sm_cnn = checkpoint.load(checkpoint.SHIPPED / "sm_cnn" / "all", "sm_cnn", device)
    networks = {
        "MP-HCNN, shipped": (shipped.model, shipped.encoder),
        "MP-HCNN at the paper's size": paper_model(workload),
        "SM-CNN": (sm_cnn.model, sm_cnn.encoder),
    }
    for title, (model, encoder) in networks.items():
        rows += _scoring(title, model, encoder, workload, peaks)
    model, encoder = networks["MP-HCNN at the paper's size"]
    return rows + _training(model, encoder, workload)


def paper_model(workload: Workload) -> tuple[mp_hcnn.Model, TextEncoder]:
    """MP-HCNN of the configuration ``paper``, untrained, with word vectors of the paper's size."""
    torch.manual_seed(1)
    trained = workload.checkpoint.encoder
    known = trained.vocabulary
    shape = (len(known.known), PAPER_VECTOR_SIZE)
    vectors = np.random.default_rng(1).normal(0, 0.4, shape).astype(np.float32)
    encoder = TextEncoder(Vocabulary(known.known, vectors, known.buckets), trained.idf)
    model = mp_hcnn.Model(mp_hcnn.PAPER, encoder.vocabulary)
    return model.to(workload.device).eval(), encoder


def _scoring(
    title: str, model: Reranker, encoder: TextEncoder, workload: Workload, peaks: dict[str, float]
) -> list[Row]:
    """Pairs/s of texts by each way; prints differences of the scores, and shares of the peak."""
    pairs, where = workload.pairs, workload.device
    on_cpu = copy.deepcopy(model).to(CPU)
    ways = {"CPU": partial(score, on_cpu, pairs, encoder)}
    for precision in peaks:
        ways[f"{where}, {precision}"] = partial(score, model, pairs, encoder, precision=precision)
        if where != "cpu":
            compiled = partial(score, model, pairs, encoder, precision=precision, compiled=True)
            ways[f"{where}, {precision}, compiled"] = compiled
    for way in ways.values():
        way()  # Memory is taken and kernels are loaded or made at first.
    timings = alternate(ways, workload.rounds)
    operations = _operations(model, encoder, workload)
    for name, timing in timings.items():
        difference = float(np.abs(timing.result - timings["CPU"].result).max(initial=0.0))
        line = f"{title}, {name}: scores differ from the CPU's by at most {difference:.1e}"
        if "bf16" not in name:
            line += f", {'not ' * (difference > TOLERANCE)}within {TOLERANCE:g}"
        if name != "CPU":
            share = operations / timing.median / peaks[name.split(", ")[1]]
            line += f"; {share:.1%} of the peak"
        print(line)
    return compared(title, timings, lambda timing: f"{len(pairs) / timing.median:,.0f} pairs/s")


def _training(model: Reranker, encoder: TextEncoder, workload: Workload) -> list[Row]:
    """Steps/s of the paper's training on random labels."""
    settings = mp_hcnn.Model.settings_of("paper")
    size = settings.batch_pairs
    pairs = workload.pairs.take(np.arange(min(STEPS * size, len(workload.pairs))))
    tokenized = Tokenized.from_pairs(pairs, encoder, model)
    examples = Examples(tokenized, np.random.default_rng(1).random(len(pairs)) < 0.1)
    rows = []
    for place in dict.fromkeys(("cpu", workload.device)):
        trained = copy.deepcopy(model).to(place)
        trainer = EpochTrainer(trained, examples, dataclasses.replace(settings, seed=1))
        trainer.train_epoch(1)
        started = time.perf_counter()
        trainer.train_epoch(2)
        rate = trainer.steps / (time.perf_counter() - started)
        text = f"{rate:,.2f} steps/s of {size} pairs"
        rows.append((f"MP-HCNN at the paper's size, training, {place}", text))
    return printed(rows)


def _operations(model: Reranker, encoder: TextEncoder, workload: Workload) -> float:
    """Floating-point operations of the matrix products for all pairs."""
    mapping = {torch.ops.aten.addmm_: addmm_flop}
    counter = FlopCounterMode(display=False, custom_mapping=mapping)
    with counter:
        score(model, workload.pairs, encoder)
    return float(counter.get_total_flops())


def _peak(device: torch.device, kind: torch.dtype) -> float:
    """Operations/s of a large matrix product, the best of a few."""
    size = SIZE if device.type == "cuda" else SIZE // 16
    matrix, best = torch.ones(size, size, device=device, dtype=kind), float("inf")
    for _ in range(5):
        started = time.perf_counter()
        float((matrix @ matrix)[0, 0])  # Waits for it.
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best
