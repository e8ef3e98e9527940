"""Train a reranker on judged collections, leaving one year out, or on a training part.

    python -m pipeline.train mp_hcnn --test mb2012
    python -m pipeline.train sm_cnn --collection trecqa-raw
    python -m pipeline.train sm_cnn --train-on mb2011 --prior-runs trec2011/* --top 30
    python -m pipeline.train mp_hcnn --collection my-posts.toml
    python -m pipeline.train fusion --collection my-posts.toml

The first trains on all judged years except 2012 and validates by topic. The second
trains on the training part of TrecQA; the development part stops it early. The third
reads the ranks of the 30 best runs of 2011, for runs of others in pipeline.rerank.

The fourth trains on a user's collection, holds each of its topics out once, tunes λ and
prints the gain. If there is a gain, searches of the collection use the model. The fifth
does the same for the candidates and scores of several searches. All write a checkpoint
folder.
"""

from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.training.training_options import Options as Options


def main(options: Options) -> None:
    """Load data, train, write the checkpoint."""
    from tweetrerank.pipeline.training.task import train

    train(options)


if __name__ == "__main__":
    run("train")
