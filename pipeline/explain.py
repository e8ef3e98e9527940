"""Explain a ranking: where posts of one topic stood before, where they stand now, and why.

    python -m pipeline.explain --topics mb2012 --query-id 51
    python -m pipeline.explain --topics mb2012 --query-id 51 --candidates ql --output page.html
    python -m pipeline.explain --topics sample --query-id 1 --doc-id 164 --doc-id 165
    python -m pipeline.explain --topics mb2012 --query-id 84 --fusion learned

The matches shown are those of MP-HCNN's similarity layer, as in table 6 of Rao et al. (AAAI 2019).
Of a learned fusion it is shown what each family of features added to a post's score.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pipeline.command.errors import DataError, UsageError
from pipeline.command.main import run
from pipeline.command.options import (
    did_you_mean,
    existing_file,
    fraction,
    option,
    output_file,
    positive_int,
)
from pipeline.first_stage import DEFAULT_HITS, DEFAULT_METHOD, METHODS, FirstStage
from pipeline.interpolation import NORMALIZATIONS

if TYPE_CHECKING:
    from pipeline.collections.sources import Source
    from pipeline.collections.trec import Topic
    from pipeline.explanation.contributions import FusionExplanation
    from pipeline.explanation.matches import Explanation
    from pipeline.explanation.rank_changes import RankChange
    from pipeline.reranking import Candidates, NeuralReranker

EXPLAINED = "mp_hcnn"
DEFAULT_SHOW = 10
DEFAULT_NORMALIZATION = "minmax"
Kind = TypeVar("Kind", "Explanation", "FusionExplanation")


@dataclass(frozen=True)
class Options:
    """What to explain, and how it was ranked."""

    topics: str = option(
        "collection (mb2012, sample, …) or file of topics (TREC XML or qid<TAB>text)",
        required=True, metavar="NAME|FILE",
    )  # fmt: skip
    query_id: str = option("the topic to explain", required=True)
    doc_id: tuple[str, ...] = option(
        "a post to explain; may be given several times (default: the best ones of the new ranking "
        "and those that rose and fell most)", many=True,
    )  # fmt: skip
    method: str | None = option(f"first stage (default: {DEFAULT_METHOD})", choices=METHODS)
    candidates: str | None = option(
        "explain the reranking of this TREC run; ql and rm3 name a collection's official runs",
        metavar="RUN",
    )
    index: Path | None = option("index folder made by pipeline.index", parse=Path, metavar="DIR")
    qrels: Path | None = option("judgments of a file of topics", parse=existing_file)
    fusion: str = option(
        "how scores came together: by λ, or by a trained model over those of several rankers and "
        "much else, which is learned (trees) or linear",
        default="interpolation", choices=("interpolation", "learned", "linear"),
    )  # fmt: skip
    reranker: str = option(f"model; only {EXPLAINED} can be explained", default=EXPLAINED)
    checkpoint: Path | None = option(
        "folder of a trained model (default: the one that has not seen these topics)",
        parse=Path, metavar="DIR",
    )  # fmt: skip
    idf: str | None = option(
        "word frequencies: wordfreq, index (the collection's own) or a file (default: as trained)",
        metavar="SOURCE",
    )
    weight: float | None = option(
        "λ, the neural score's share (default: the checkpoint's tuned one; 1 where the candidates "
        "are given without scores)",
        parse=fraction, names=("--lambda",),
    )  # fmt: skip
    normalize: str = option(
        "of scores before mixing", default=DEFAULT_NORMALIZATION, choices=NORMALIZATIONS
    )
    hits: int | None = option(f"candidates (default: {DEFAULT_HITS})", parse=positive_int)
    show: int | None = option(
        f"posts shown of the new ranking's best (default: {DEFAULT_SHOW})", parse=positive_int
    )
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    device: str = option("where the model runs", default="auto", choices=("auto", "cpu", "cuda"))
    output: Path | None = option(
        "write an HTML page in place of the terminal's view", parse=output_file, metavar="HTML"
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Rank the topic's candidates, choose posts, find out why they are there, show it all."""
    from pipeline.collections.sources import open_source
    from pipeline.explanation import contribution_page, match_page

    _check(options)
    source = open_source(options.topics, options.index, options.qrels, options.data)
    if options.fusion == "interpolation":
        _show(
            options, _interpolated(options, source), match_page.page, match_page.print_explanation
        )
    else:
        _show(
            options, _fused(options, source), contribution_page.page,
            contribution_page.print_explanation,
        )  # fmt: skip


def _show(
    options: Options, explanation: Kind, page: Callable[[Kind], str],
    to_terminal: Callable[[Kind], None],
) -> None:  # fmt: skip
    from indexes.files import atomic_file

    if options.output is None:
        to_terminal(explanation)
        return
    with atomic_file(options.output) as stream:
        stream.write(page(explanation))
    print(f"wrote {options.output}", file=sys.stderr)


def _check(options: Options) -> None:
    """Refuse arguments that make no sense, all at once."""
    is_fused = options.fusion != "interpolation"
    problems = _check_fusion(options) if is_fused else _check_interpolation(options)
    if options.doc_id and options.show:
        problems.append("--show: --doc-id says already which posts are shown")
    if problems:
        raise UsageError(problems)


def _check_interpolation(options: Options) -> list[str]:
    from pipeline.fusion import MODELS

    problems = []
    why = f"expected {EXPLAINED}: explanations exist for {EXPLAINED}, as they show its matches"
    if options.reranker != EXPLAINED:
        problems.append(f"--reranker: found {options.reranker!r}, {why}")
    elif options.checkpoint and (found := _model_in(options.checkpoint)) not in (None, EXPLAINED):
        advice = next((f"; add --fusion {f}" for f, model in MODELS.items() if model == found), "")
        problems.append(
            f"--checkpoint {options.checkpoint}: found a model of {found}, {why}{advice}"
        )
    if options.candidates and options.method:
        problems.append("--candidates: the run is given, so --method changes nothing")
    return problems


def _check_fusion(options: Options) -> list[str]:
    from pipeline.fusion import MODELS

    given = {
        "--candidates": options.candidates, "--method": options.method,
        "--lambda": options.weight is not None, "--hits": options.hits,
        "--normalize": options.normalize != DEFAULT_NORMALIZATION,
        "--reranker": options.reranker != EXPLAINED,
    }  # fmt: skip
    problems = [
        f"{flag}: --fusion {options.fusion} takes the rankers that it was trained with; leave "
        f"{flag} out"
        for flag, value in given.items()
        if value
    ]
    expected = MODELS[options.fusion]
    if options.checkpoint and (found := _model_in(options.checkpoint)) not in (None, expected):
        problems.append(
            f"--checkpoint {options.checkpoint}: found a model of {found}, expected {expected} "
            f"for --fusion {options.fusion}"
        )
    return problems


def _model_in(directory: Path) -> str | None:
    """The model that a checkpoint folder says it is of; None if it says nothing."""
    try:
        return str(json.loads((directory / "config.json").read_text(encoding="utf-8"))["model"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # Loading it will say what is wrong.


def _topic(options: Options, source: "Source") -> "Topic":
    known = [topic.query_id for topic in source.topics]
    for topic in source.topics:
        if topic.query_id == options.query_id:
            return topic
    raise UsageError(
        f"--query-id: found {options.query_id!r}, expected a topic of {source.name}: "
        f"{_some(known)}{did_you_mean(options.query_id, known)}"
    )


def _require_candidates(candidates: "Candidates", topic: "Topic") -> None:
    if not candidates.run.get(topic.query_id):
        raise DataError(
            f"topic {topic.query_id} “{topic.text}”: found no candidates to rank, expected some; "
            "try another topic or other candidates"
        )


def _chosen(
    options: Options, found: "Mapping[str, RankChange]", topic: "Topic"
) -> dict[str, list[str]]:
    """Heading -> doc_ids of the posts to show."""
    from pipeline.explanation.rank_changes import choose

    if unknown := [doc_id for doc_id in options.doc_id if doc_id not in found]:
        raise UsageError([
            f"--doc-id: found {doc_id!r}, expected one of the {len(found)} candidates of topic "
            f"{topic.query_id}: {_some(list(found))}" for doc_id in unknown
        ])  # fmt: skip
    named = list(dict.fromkeys(options.doc_id))
    return {"named posts": named} if named else choose(found, options.show or DEFAULT_SHOW)


def _fused(options: Options, source: "Source") -> "FusionExplanation":
    from pipeline import fusion
    from pipeline.checkpoints import load_reranker
    from pipeline.explanation.contributions import Fused, explain
    from pipeline.explanation.rank_changes import rank_changes

    def load(name: str, checkpoint: Path | None = None) -> "NeuralReranker":
        return load_reranker(name, source, checkpoint, options.device, options.threads, options.idf)

    topic = _topic(options, source)
    reranker = load(fusion.MODELS[options.fusion], options.checkpoint)
    model = fusion.Fusion.of(reranker, load)
    candidates = model.read(model.search(replace(source, topics=[topic])))
    _require_candidates(candidates, topic)
    fused = Fused.of(reranker, candidates)
    found = rank_changes(candidates.run[topic.query_id], fused.scores)
    grades = (source.qrels or {}).get(topic.query_id, {})
    return explain(
        source.name, topic, reranker, candidates, fused, found, grades,
        _chosen(options, found, topic),
    )  # fmt: skip


def _interpolated(options: Options, source: "Source") -> "Explanation":
    from pipeline.checkpoints import load_reranker
    from pipeline.explanation.matches import explain
    from pipeline.explanation.rank_changes import rank_changes

    first_stage = FirstStage(source, options.candidates, options.method, (), options.hits)
    first_stage.check({"--method": options.method, "--index": options.index}, options.idf)
    topic = _topic(options, source)
    reranker = load_reranker(
        EXPLAINED, source, options.checkpoint, options.device, options.threads, options.idf
    )
    candidates = first_stage.search([topic])
    _require_candidates(candidates, topic)
    query_id, directory = topic.query_id, reranker.checkpoint.directory
    neural = reranker.score(candidates)
    weight, origin = first_stage.weight(options.weight, directory, options.normalize)
    after = first_stage.mix(candidates, neural, weight, options.normalize)
    found = rank_changes(candidates.run[query_id], after[query_id], neural[query_id])
    # The page may be given away: without the path that follows.
    mixing = (
        f"λ = {weight:g} ({origin.partition('; ')[0]}), scores normalised by {options.normalize}"
    )
    return explain(
        source.name, topic, first_stage.name, mixing, reranker, candidates, found,
        (source.qrels or {}).get(query_id, {}), _chosen(options, found, topic),
    )  # fmt: skip


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


if __name__ == "__main__":
    run("explain")
