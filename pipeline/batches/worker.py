"""Scoring of the parts of a batch job, in this process or in one of many."""

from __future__ import annotations

import json
import time
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rerankers.scoring.precomputed import version_of

from indexes.files import write_bytes
from pipeline.batches.formats import Content, write
from pipeline.batches.job import BatchJob, Part
from pipeline.batches.rows import candidates_of, units_of
from pipeline.command.defaults import DEFAULT_RERANKER
from pipeline.command.errors import DataError
from pipeline.command.runtime import choose_device
from pipeline.ranking.checkpoints import check_reads_given
from pipeline.ranking.ranker import Mixing, Mixture, ModelScorer
from rerankers import checkpoint as checkpoints
from rerankers.reranker import Model


class Done(NamedTuple):
    """A part that is done.

    Attributes:
        rows: that it has, those that cannot be read included.
        posts: that were scored now; 0 if it was done before.
        rejected: rows that cannot be read.
        began: time of the process's first part, in seconds.
    """

    rows: int
    posts: int
    rejected: int
    began: float


def load(folder: Path, name: str, device: str) -> Model:
    """The model of a checkpoint folder, one that scores what it is given; raises RerankerError."""
    trained = checkpoints.load(folder, name, device)
    check_reads_given(trained)
    return trained


class Worker:
    """Scores parts of a job by its model (default: load it); raises RerankerError or DataError."""

    def __init__(self, job: BatchJob, trained: Model | None = None) -> None:
        self.job, settings = job, job.settings
        if trained is None:
            device = choose_device(job.device, job.threads)
            folder = job.checkpoint or checkpoints.find(settings.reranker)
            if version_of(folder) != settings.version:
                raise DataError(f"{folder}: found another model than that of the job")
            trained = load(folder, settings.reranker, device)
        self._model = trained
        scorer = ModelScorer(trained, job.batch_size, settings.precision)
        self._ranker = Mixture(None, scorer, Mixing(settings.weight))
        self._reader = job.reader()

    @cached_property
    def _began(self) -> float:
        return time.time()

    def run(self, part: Part) -> Done:
        """Score a part and write it, unless it is there."""
        began = self._began
        if self.job.output_of(part).exists():
            return Done(part.span.rows, 0, 0, began)
        settings = self.job.settings
        content = self._reader.read(self.job.files[part.file], part.span, settings.form)
        scores = self.scores(content, part)
        if content.rejected:
            self._write_rejected(content, part)
        # The last: it says that the part is done.
        write(self.job.output_of(part), content, scores, settings.form, settings.output)
        return Done(part.span.rows, len(scores), len(content.rejected), began)

    def scores(self, content: Content, part: Part) -> list[float]:
        """Scores of all posts, in their order."""
        settings = self.job.settings
        units = list(units_of(content.rows, settings.form))
        reads_lists = settings.has_first_stage or self._model.reads == "lists"
        if reads_lists and not settings.is_nested:
            seen = set()
            for unit in units:
                if unit.query_id in seen:
                    raise DataError(
                        f"{self.job.files[part.file]}: found the query {unit.query_id} again after "
                        f"others (between {self._reader.place} {part.span.first} and "
                        f"{part.span.first + part.span.rows}), expected its pairs together, which "
                        "are ranked as a list; sort them by query_id, or score each by itself: "
                        f"--reranker {DEFAULT_RERANKER} --lambda 1"
                    )
                seen.add(unit.query_id)
        candidates, keys = candidates_of(units, settings.form)
        if not keys:
            return []
        run = self._ranker.rerank(candidates).run
        found = np.array([run[query_id][key] for query_id, key in keys])
        # As many digits as the service gives.
        return found.round(7 if settings.weight == 1 else 12).tolist()

    def _write_rejected(self, content: Content, part: Part) -> None:
        path: Path = self.job.files[part.file]
        lines = [
            json.dumps({"place": f"{path}:{number}", "reason": reason, "row": row})
            for number, reason, row in sorted(content.rejected)
        ]
        text = "".join(f"{line}\n" for line in lines)
        write_bytes(self.job.rejected_of(part), text.encode())
