#!/usr/bin/env python3
"""A notebook's first ten minutes: index own posts, search, rerank, evaluate, draw λ.

    python scripts/examples/notebook.py lambda.png

Each part between blank lines is a cell.
"""

import sys

import pipeline

posts = [
    {"id": "1", "text": "Storm warning for the whole coast tonight, gale force winds expected"},
    {"id": "2", "text": "my coffee warning of the day lol"},
    {"id": "3", "text": "stay inside", "url": "http://news.example.com/storm-warning-coast"},
    {"id": "4", "text": "Harbour closed, ferries cancelled: the storm is here"},
    {"id": "5", "text": "Warning: this coast path is closed until May"},
]
topics = {"a": "storm warning coast", "b": "ferry cancelled"}
qrels = {"a": {"1": 2, "3": 1}, "b": {"4": 1}}

mine = pipeline.open_collection(posts=posts, topics=topics, qrels=qrels)
for hit in mine.search("storm at the coast", k=3):
    print(f"{hit.score:6.2f}  {hit.text}")

best = pipeline.ranker(mine)
ranking = best.rank()
print(pipeline.evaluate(ranking, "AP", "P@1"))
pipeline.write_run("mine.run", ranking.run)

curve = {}
for weight in (0, 0.25, 0.5, 0.75, 1):
    mixture = pipeline.ranker(mine, reranker="mp_hcnn", first_stage="bm25", weight=weight)
    stages = pipeline.evaluate(mixture.rank(), "AP")
    curve[weight] = stages[list(stages.values)[-1]]["AP"]
print(curve)

if sys.argv[1:]:
    from matplotlib import pyplot

    pyplot.plot(list(curve), list(curve.values()), marker="o")
    pyplot.xlabel("λ (0: BM25 alone, 1: MP-HCNN alone)")
    pyplot.ylabel("AP")
    pyplot.savefig(sys.argv[1])
