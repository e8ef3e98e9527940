"""Train a reranker on judged topics, and write it as a checkpoint.

    python -m pipeline.train mp_hcnn --test mb2012
    python -m pipeline.train sm_cnn --collection trecqa-raw
    python -m pipeline.train sm_cnn --train-on mb2011 --prior-runs trec2011/* --top 30
    python -m pipeline.train mp_hcnn --collection my-posts.toml
    python -m pipeline.train fusion --collection my-posts.toml

The first command trains on all judged years except 2012, and validates on topics that
it holds out. The second trains on the training part of TrecQA, and stops early by the
development part. The third also reads the ranks of the 30 best runs of 2011. It makes a
model for pipeline.rerank, which reranks runs of other systems.

The fourth trains on a user's collection. It holds each topic out once, tunes λ, and
prints the gain. If there is a gain, searches of the collection use the model. The fifth
does the same with a model that fuses the candidates and scores of several searches.
Every command writes a checkpoint folder.
"""

from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.training.training_options import Options as Options


def main(options: Options) -> None:
    """Load the data, train the model, and write the checkpoint."""
    from tweetrerank.pipeline.training.task import train

    train(options)


if __name__ == "__main__":
    run("train")
