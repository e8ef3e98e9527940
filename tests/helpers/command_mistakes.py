"""Mistakes on the command lines of all commands, and the messages that report them.

The command lines have placeholders. SAMPLE is the folder of the sample collection,
SHIPPED is the folder of the shipped checkpoints, DATA is a data folder with made-up
posts, and NOWHERE is an address without a server. Each test finds the run
``small.run``, which has two topics of the sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mistake:
    """A command line with a mistake, and parts of the message that reports it."""

    reason: str
    command: str
    messages: Sequence[str]
    code: int = 2  # Usage; 1 for mistakes in files
    files: Mapping[str, str] = field(default_factory=dict)


# Contents of files

RESULT = "1 Q0 101 1 1.0 t\n"
JUDGMENT = "1 0 a 1\n"
NESTED_ROW = '{"query_id": 1, "query": "a", "posts": [{"doc_id": "1", "text": "a"}]}\n'
PAIR_ROW = '{"query_id": 1, "query": "a", "doc_id": "1", "text": "a"}\n'
SCORED_ROW = '{"query_id": 1, "query": "a", "doc_id": "1", "text": "a", "score": 1}\n'
POSTS_OF_FILE = 'posts = "posts.jsonl"\n'
FOREIGN_INDEX = """topics = "SAMPLE/topics.txt"
qrels = "SAMPLE/qrels.txt"
engine = "NOWHERE"
engine_index = "x"
text_field = "body"
query = "query.json"
"""
QUERY = '{"match": {"body": "{{query}}"}}'

SEARCH = [
    Mistake(
        "unknown collection", "search --topics mb2021 --output run", ["did you mean"]
    ),
    Mistake(
        "a parameter of another method",
        "search --topics sample --mu 9 --method bm25 --output run",
        ["bm25 has no μ"],
    ),
    Mistake(
        "unknown model",
        "search --topics sample --reranker bert --output run",
        ["found 'bert', expected one of"],
    ),
    Mistake(
        "a run that is not there",
        "search --topics sample --candidates none.txt --output run",
        ["none.txt"],
        code=1,
    ),
    Mistake(
        "a checkpoint that is not there",
        "search --topics sample --checkpoint nowhere --output run",
        ["nowhere/config.json"],
        code=1,
    ),
    Mistake(
        "unknown parameter of the method",
        "search --topics sample --parameter mu=1 --parameter nu=1 --output run",
        ["nu"],
    ),
    Mistake(
        "a topic without results",
        "search --topics sample --show 99 --output run",
        ["expected a topic with results"],
    ),
    Mistake(
        "an index without its engine",
        "search --topics sample --engine-index x",
        ["--engine URL is missing"],
    ),
    Mistake(
        "a local and a remote index",
        "search --topics sample --engine NOWHERE --index x",
        ["--index and --engine"],
    ),
    Mistake(
        "topics, and an engine without an index",
        "search --topics SAMPLE/topics.txt --engine NOWHERE",
        ["--engine-index NAME is missing"],
    ),
    Mistake(
        "a password on the command line",
        "search --topics sample --engine http://u:hush@x",
        ["user or password in"],
    ),
    Mistake(
        "a query file that is not there",
        "search --topics sample --query no.json",
        ["found no file 'no.json'"],
    ),
    Mistake(
        "a method that engines lack",
        "search --topics sample --engine NOWHERE --method rm3",
        ["found rm3, expected one of ql, bm25, which", "search a local index"],
    ),
    Mistake(
        "an engine that does not answer",
        "search --topics sample --engine NOWHERE --reranker none",
        ["http://127.0.0.1:9: no answer ("],
        code=1,
    ),
    Mistake(
        "options of a search for given candidates",
        (
            "search --topics trecqa-raw --method ql --mu 5 --parameter mu=1 "
            "--index . --hits 5 --output run"
        ),
        [
            "--method: trecqa-raw is not searched, its candidates are given",
            "--mu: trecqa-raw",
            "--parameter: trecqa-raw",
            "--index: trecqa-raw",
            "--hits: trecqa-raw",
        ],
    ),
    Mistake(
        "a misspelt file",
        "search --collection harbor.toml",
        ["found no file harbor.toml; ", " has harbour.toml"],
        files={"harbour.toml": POSTS_OF_FILE},
    ),
    Mistake(
        "a file without its ending",
        "search --collection harbour",
        ["did you mean 'harbour.toml'?"],
        files={"harbour.toml": POSTS_OF_FILE},
    ),
    Mistake(
        "a file with the name of a collection",
        "search --collection mb12.toml",
        ["mb12 is the name of another collection"],
        code=1,
        files={"mb12.toml": POSTS_OF_FILE},
    ),
    Mistake(
        "no model trained for the collection",
        "search --collection mine.toml --reranker knrm",
        [
            "no knrm trained for mine.toml here",
            "pipeline.train knrm --collection mine.toml`",
        ],
        code=1,
        files={
            "mine.toml": (
                'posts = "SAMPLE/posts.jsonl"\ntopics = "SAMPLE/topics.txt"\nqrels = '
                '"SAMPLE/qrels.txt"\n'
            )
        },
    ),
    Mistake(
        "a method for a query of one's own",
        "search --collection mine.toml --output run --method bm25",
        ["is ranked by its own query; leave it and --parameter"],
        files={"mine.toml": FOREIGN_INDEX, "query.json": QUERY},
    ),
    Mistake(
        "three wrong values at once",
        "search sample --hits 0 --lambda 7 --show",
        ["--hits: found 0", "--lambda: found 7", "--show: expected one argument"],
    ),
]

EXPLAIN = [
    Mistake(
        "a topic that the collection lacks",
        (
            "explain --topics sample --query-id 1 --candidates small.run "
            "--reranker mp_hcnn --query-id 99"
        ),
        ["--query-id: found '99', expected a topic of sample: 10, 1, 2"],
    ),
    Mistake(
        "a topic that the run lacks",
        (
            "explain --topics sample --query-id 1 --candidates small.run "
            "--reranker mp_hcnn --query-id 3"
        ),
        ["expected some for the topics 3"],
        code=1,
    ),
    Mistake(
        "a post that is no candidate",
        (
            "explain --topics sample --query-id 1 --candidates small.run "
            "--reranker mp_hcnn --doc-id 42 --doc-id 43"
        ),
        ["--doc-id: found '43', expected one of the"],
    ),
    Mistake(
        "a method of search beside given candidates",
        (
            "explain --topics sample --query-id 1 --candidates small.run "
            "--reranker mp_hcnn --method bm25"
        ),
        ["--method, --mu and --parameter change nothing"],
    ),
    Mistake(
        "best posts beside named ones",
        (
            "explain --topics sample --query-id 1 --candidates small.run "
            "--reranker mp_hcnn --doc-id 1 --show 3"
        ),
        ["--show: --doc-id says already"],
    ),
    Mistake(
        "a method beside a fusion",
        "explain --topics sample --query-id 1 --reranker fusion --method bm25",
        ["--method: fusion takes the rankers of its"],
    ),
    Mistake(
        "a weight beside a fusion",
        "explain --topics sample --query-id 1 --reranker fusion --lambda 0",
        ["--lambda: fusion takes the rankers of its"],
    ),
]

RERANK = [
    Mistake("no run", "rerank --topics sample --reranker mp_hcnn", ["runs is missing"]),
    Mistake(
        "runs that are not there",
        "rerank --topics sample --reranker mp_hcnn no1 no2",
        ["there is no file no1, nor has sample", "there is no file no2"],
    ),
    Mistake(
        "two runs with one output",
        "rerank --topics sample --reranker mp_hcnn mine other/mine",
        ["mine and another that would be written to"],
        files={"mine": RESULT, "other/mine": RESULT},
    ),
    Mistake(
        "a run twice",
        "rerank --topics sample --reranker mp_hcnn mine other/../mine",
        ["more than once"],
        files={"mine": RESULT, "other/mine": RESULT},
    ),
    Mistake(
        "a run that would be overwritten",
        "rerank --topics sample --reranker mp_hcnn mine mine.mp_hcnn --output .",
        ["mine.mp_hcnn is one of the runs"],
        files={"mine": RESULT, "mine.mp_hcnn": RESULT},
    ),
    Mistake(
        "a report over a run",
        "rerank --topics sample --reranker mp_hcnn mine --report mine",
        ["--report: found mine, which is a run"],
        files={"mine": RESULT},
    ),
    Mistake(
        "a report over a reranked run",
        (
            "rerank --topics sample --reranker mp_hcnn mine --output o --report "
            "o/mine.mp_hcnn"
        ),
        ["--report: found o/mine.mp_hcnn"],
        files={"mine": RESULT},
    ),
    Mistake(
        "a file in place of the output folder",
        "rerank --topics sample --reranker mp_hcnn small.run --output mine",
        ["--output: found the file mine, expected a folder"],
        files={"mine": RESULT},
    ),
    Mistake(
        "no model, and an index beside a collection",
        "rerank --topics sample --reranker none --index x small.run",
        ["--index: found it", "found 'none'"],
    ),
    Mistake(
        "a post that the collection lacks",
        "rerank --topics sample --reranker mp_hcnn small.run unknown",
        ["1 of its 1 posts are not in the collection (42)"],
        code=1,
        files={"unknown": "9 Q0 42 1 1.0 t\n"},
    ),
    Mistake(
        "results for unknown topics",
        "rerank --topics sample --reranker mp_hcnn small.run elsewhere",
        ["found results for 99, expected some for the topics"],
        code=1,
        files={"elsewhere": "99 Q0 101 1 1.0 t\n"},
    ),
    Mistake(
        "a score that is no number",
        "rerank --topics sample --reranker mp_hcnn small.run no_number",
        ["no_number:1: found the score 'nan'"],
        code=1,
        files={"no_number": "9 Q0 101 1 nan t\n"},
    ),
    Mistake(
        "no model trained for the year",
        "rerank --topics mb2013 --reranker knrm --data DATA ql",
        ["python -m pipeline.train knrm --test mb2013"],
        code=1,
    ),
]

EVALUATE = [
    Mistake(
        "no run to evaluate",
        "evaluate qrels",
        ["runs is missing"],
        files={"qrels": JUDGMENT},
    ),
    Mistake(
        "unknown measures",
        "evaluate qrels small.run -m foo -m P_5",
        ["did you mean 'P@5'?"],
        files={"qrels": JUDGMENT},
    ),
    Mistake(
        "a measure of trec_eval",
        "evaluate qrels small.run -m ndcg_cut_10",
        ["did you mean 'nDCG@10'?"],
        files={"qrels": JUDGMENT},
    ),
    Mistake(
        "a misspelt measure",
        "evaluate qrels small.run -m Rprcc",
        ["did you mean 'Rprec'?"],
        files={"qrels": JUDGMENT},
    ),
    Mistake(
        "a run to evaluate that is not there",
        "evaluate qrels small.run nope",
        ["runs: there is no file nope"],
        files={"qrels": JUDGMENT},
    ),
    Mistake(
        "a run to compare with that is not there",
        "evaluate qrels small.run --against nope",
        ["--against: there is no file nope"],
        files={"qrels": JUDGMENT},
    ),
    Mistake(
        "a run compared with itself",
        "evaluate qrels small.run --against ./small.run",
        ["--against: found no other run"],
        files={"qrels": JUDGMENT},
    ),
    Mistake(
        "judgments that are not there",
        "evaluate nope.txt small.run",
        ["there is no file of judgments nope.txt"],
    ),
    Mistake(
        "a run in place of judgments",
        "evaluate small.run small.run",
        ["small.run:1: found 6 columns"],
        code=1,
    ),
    Mistake(
        "judgments in place of a run",
        "evaluate qrels qrels",
        ["qrels:1: found 4 columns"],
        code=1,
        files={"qrels": JUDGMENT},
    ),
    Mistake(
        "judgments with a blank in an id",
        "evaluate qrels.csv small.run",
        ["qrels.csv:2: found '1,a b,1', expected ids of one word"],
        code=1,
        files={"qrels.csv": "query_id,doc_id,relevance\n1,a b,1\n"},
    ),
]

INDEX = [
    Mistake("nothing to index", "index --index x", ["nothing to index"]),
    Mistake(
        "no folder for the index",
        "index --posts SAMPLE/posts.jsonl",
        ["--index DIR is missing"],
    ),
    Mistake(
        "posts and a collection",
        "index --posts SAMPLE/posts.jsonl --index x --collection mb2011",
        ["cannot be combined"],
    ),
    Mistake(
        "a collection whose candidates are given",
        "index --topics trecqa-raw",
        ["expected a collection whose posts are searched"],
    ),
    Mistake(
        "a folder beside an engine",
        "index --collection sample --engine NOWHERE --index x",
        ["--index: not with"],
    ),
    Mistake(
        "an engine without an index",
        "index --posts SAMPLE/posts.jsonl --engine NOWHERE",
        ["--engine-index NAME is missing"],
    ),
    Mistake(
        "a post without a text",
        "index --posts monday.jsonl --index index",
        [
            (
                "python -m pipeline.index: error: monday.jsonl:1: found the keys "
                '"id", expected a text under "text"'
            )
        ],
        code=1,
        files={"monday.jsonl": '{"id": 1}\n'},
    ),
    Mistake(
        "a post in two files",
        "index --posts monday.jsonl --posts tuesday.jsonl --index index",
        ["python -m pipeline.index: error: ", "monday.jsonl:1, tuesday.jsonl:1), "],
        code=1,
        files={
            "monday.jsonl": '{"id": 30, "text": "again"}\n',
            "tuesday.jsonl": '{"id_str": "30", "full_text": "alpha"}\n',
        },
    ),
    Mistake(
        "an index that is only searched",
        "index --collection mine.toml",
        ["is searched as it is, not built"],
        files={"mine.toml": FOREIGN_INDEX, "query.json": QUERY},
    ),
]

TRAIN = [
    Mistake(
        "unknown model to train",
        "train mp_hcn --data DATA",
        ["model: found 'mp_hcn', expected one of"],
    ),
    Mistake(
        "unknown configuration",
        "train mp_hcnn --configuration papre --data DATA",
        ["expected one of robust, small, paper"],
    ),
    Mistake(
        "unknown setting",
        "train mp_hcnn --set detph=3 --data DATA",
        ["did you mean 'depth'"],
    ),
    Mistake(
        "a training without epochs",
        "train mp_hcnn --set training.epochs=0 --data DATA",
        ["found 0, expected one epoch or more"],
    ),
    Mistake(
        "two wrong settings of the training",
        (
            "train mp_hcnn --set training.epochs=-1 --set "
            "training.learning_rate=-1 --data DATA"
        ),
        [
            "learning_rate: found -1.0, expected a number above 0",
            "setting epochs: found -1",
        ],
    ),
    Mistake(
        "word frequencies of no collection",
        "train fusion --idf posts --test mb2012 --data DATA",
        ["--idf posts: found without --collection, whose posts they are of"],
    ),
    Mistake(
        "two ways to choose training data",
        "train bigram --test mb2012 --collection trecqa-raw --data DATA",
        ["found both"],
    ),
    Mistake(
        "settings that contradict each other",
        (
            "train bigram --set training.sampling=pairs --set "
            "training.loss=pairwise --data DATA"
        ),
        ["setting sampling: found pairs with the loss pairwise"],
    ),
    Mistake(
        "a collection name cut short",
        "train bigram --collection trecqa --data DATA",
        ["a collection of questions with given answers"],
    ),
    Mistake(
        "answers in place of a microblog year",
        "train bigram --test wikiqa --data DATA",
        ["--collection wikiqa"],
    ),
    Mistake(
        "drawn candidates without answers",
        "train bigram --test mb2012 --development drawn --data DATA",
        ["found no --collection"],
    ),
    Mistake(
        "answers and microblog years",
        "train sm_cnn --collection trecqa-raw --train-on mb2011 --data DATA",
        ["--collection: found with --train-on"],
    ),
    Mistake(
        "best runs without runs",
        "train sm_cnn --top 30 --data DATA",
        ["--top: found without --prior-runs"],
    ),
    Mistake(
        "training on the test collection",
        "train sm_cnn --test mb2012 --train-on mb2011 mb12 --data DATA",
        [
            (
                "found mb2012, expected some of mb2011, mb2013, mb2014, the judged "
                "collections"
            )
        ],
    ),
    Mistake(
        "a fusion on given candidates",
        "train fusion --collection trecqa-raw --data DATA",
        ["--collection: fusion ranks what searches find"],
    ),
    Mistake(
        "a fusion without training data",
        "train fusion --train-on trecqa-raw --data DATA",
        ["found no other collection to train on"],
    ),
    Mistake(
        "a setting of networks for trees",
        "train lambdamart --test mb2012 --set training.epochs=3 --data DATA",
        ["--set training.epochs=3: found for lambdamart"],
    ),
]

ADAPT = [
    Mistake(
        "posts that are not searched",
        "adapt --collection wikiqa",
        ["wikiqa is not searched"],
    ),
    Mistake(
        "unknown collection to adapt to", "adapt --collection no-such", ["no-such"]
    ),
    Mistake(
        "unknown teacher",
        "adapt --collection sample --teacher minlm",
        ["found 'minlm', expected minilm, multilingual or a fo"],
    ),
    Mistake("no post to encode", "adapt --collection sample --posts 0", ["--posts"]),
    Mistake(
        "a collection and an index",
        "adapt --collection sample --index mine",
        ["give one of --collection NAME and --index DIR"],
    ),
]

TUNE = [
    Mistake(
        "no collection to tune on",
        "tune",
        ["give one of --test NAME, --collection FILE and --transfer"],
    ),
    Mistake(
        "a named collection to tune on",
        "tune --collection mb2012",
        ["expected the file of an own collection"],
    ),
    Mistake(
        "a file left out of tuning",
        "tune --test mine.toml",
        ["tune on it by --collection"],
    ),
    Mistake(
        "a model without a weight",
        "tune --collection mine.toml --reranker fusion",
        ["has no λ"],
    ),
    Mistake(
        "too few topics to tune on",
        "tune --collection mine.toml",
        ["found 1 judged topic to train on"],
        code=1,
        files={
            "qrels.txt": "1 0 101 1\n",
            "mine.toml": (
                'posts = "SAMPLE/posts.jsonl"\ntopics = "SAMPLE/topics.txt"\nqrels = '
                '"qrels.txt"\n'
            ),
        },
    ),
]

SERVE = [
    Mistake(
        "a port too large",
        "serve --port 70000",
        ["--port: found '70000', expected a port from 0"],
    ),
    Mistake(
        "no process that scores",
        "serve --port 0 --threads 0",
        ["--threads: found 0, expected a whole number"],
    ),
    Mistake(
        "a size with a fraction",
        "serve --port 0 --max-body 1.5MB",
        ["--max-body: found '1.5MB', expected a size"],
    ),
    Mistake(
        "a size of 0",
        "serve --port 0 --max-body 0",
        ["--max-body: found '0', expected a size"],
    ),
    Mistake(
        "a size in unknown units",
        "serve --port 0 --max-body 1TB",
        ["--max-body: found '1TB', expected a size"],
    ),
    Mistake(
        "a size in fruit",
        "serve --port 0 --max-body 5_bananas",
        ["--max-body: found '5_bananas', expected a size"],
    ),
    Mistake(
        "keys that are not there",
        "serve --port 0 --api-key-file none",
        ["--api-key-file: there is no file none"],
    ),
    Mistake(
        "a key of no certificate",
        "serve --port 0 --ssl-keyfile small.run",
        ["--ssl-keyfile: found no --ssl-certfile"],
    ),
    Mistake(
        "a log of no engine", "serve --port 0 --log log", ["--log: found no --engine"]
    ),
    Mistake(
        "a challenger without a log",
        "serve --port 0 --challenger mp_hcnn",
        ["--challenger: found no --log"],
    ),
    Mistake(
        "an engine without indexes",
        "serve --port 0 --engine NOWHERE",
        ["--engine: found no --engine-index"],
    ),
    Mistake(
        "a hidden index",
        "serve --port 0 --engine NOWHERE --engine-index .keys",
        ["found '.keys', expected the name of an index"],
    ),
    Mistake(
        "all indexes by the engine's name",
        "serve --port 0 --engine NOWHERE --engine-index _all",
        ["found '_all', expected the name of an index"],
    ),
    Mistake(
        "two indexes in one option",
        "serve --port 0 --engine NOWHERE --engine-index a,b",
        ["found 'a,b', expected the name of an index"],
    ),
    Mistake(
        "unknown models to serve",
        "serve --port 0 --checkpoint no_such_model --checkpoint nor_this",
        ["no folder 'no_such_model'", "no folder 'nor_this'"],
    ),
    Mistake(
        "a model twice",
        "serve --port 0 --checkpoint mp_hcnn --checkpoint mp_hcnn",
        ["found two models of the name mp_hcnn"],
    ),
    Mistake(
        "a fusion, which searches itself",
        "serve --port 0 --checkpoint SHIPPED/fusion/all",
        ["expected a model of given candidates"],
        code=1,
    ),
    Mistake(
        "options that lack the one they need",
        "serve --port 0 --grades g --challenger mp_hcnn --text-field body",
        [
            "--grades: found no --collection",
            "--challenger: found no --log",
            "--text-field: found no --engine",
        ],
    ),
    Mistake(
        "an origin without its scheme",
        "serve --port 0 --cors-origin example.com",
        ["--cors-origin: found 'example.com', expected * or an address"],
    ),
    Mistake(
        "an origin with a path",
        "serve --port 0 --cors-origin https://example.com/",
        ["found 'https://example.com/', expected * or an address"],
    ),
    Mistake(
        "a host with its scheme",
        "serve --port 0 --allow-host http://example.com",
        [("--allow-host: found 'http://example.com', expected a name without scheme")],
    ),
    Mistake(
        "a host with its port",
        "serve --port 0 --allow-host example.com:443",
        ["found 'example.com:443', expected a name without scheme and port"],
    ),
    Mistake(
        "an address of another machine",
        "serve --port 0 --host 192.0.2.1",
        ["expected an address of this machine"],
        code=1,
    ),
    Mistake(
        "a file without keys",
        "serve --port 0 --api-key-file keys",
        ["keys: found no key"],
        code=1,
        files={"keys": "\n \n"},
    ),
    Mistake(
        "a file without a certificate",
        "serve --port 0 --ssl-certfile small.run",
        ["expected a certificate, its key without a password"],
        code=1,
    ),
]

ENGINE = [
    Mistake(
        "no service to install",
        "engine install --engine NOWHERE",
        ["--service is missing"],
    ),
    Mistake(
        "unknown action", "engine instal --engine NOWHERE", ["did you mean 'install'"]
    ),
    Mistake(
        "a pipeline name with a star",
        "engine install --engine NOWHERE --service NOWHERE --pipeline *",
        ["expected letters"],
    ),
]

BATCH = [
    Mistake(
        "rows that are not there",
        "batch --input lost.parquet --output out.parquet",
        ["--input: there is no lost.parquet, expected JSON lines or Parquet"],
    ),
    Mistake(
        "files of other formats",
        "batch --input . --output out",
        ["passed over 3 by their names: b.jsonl.zst, c.csv, small.run"],
        code=1,
        files={"a.jsonl": "{}\n", "b.jsonl.zst": "", "c.csv": "", "_SUCCESS": ""},
    ),
    Mistake(
        "an empty file",
        "batch --input in.jsonl --output out",
        ["found no row with a post"],
        code=1,
        files={"in.jsonl": ""},
    ),
    Mistake(
        "a row without columns",
        "batch --input in.jsonl --output out",
        ["in.jsonl:1: query_id: found nothing"],
        code=1,
        files={"in.jsonl": "{}\n"},
    ),
    Mistake(
        "a query without posts",
        "batch --input in.jsonl --output out",
        ["found no row with a post"],
        code=1,
        files={"in.jsonl": '{"query_id": 1, "query": "a", "posts": []}\n'},
    ),
    Mistake(
        "no score, where scores are to be read",
        "batch --input in.jsonl --output out --order scores",
        ["no first_stage_score in the first row"],
        code=1,
        files={"in.jsonl": NESTED_ROW},
    ),
    Mistake(
        "a column of scores in the input",
        "batch --input in.jsonl --output out",
        ["in.jsonl:1: score: found '1', expected no"],
        code=1,
        files={"in.jsonl": SCORED_ROW},
    ),
    Mistake(
        "unknown model and checkpoint for a batch",
        ("batch --input in.jsonl --output out --reranker mphcnn --checkpoint none"),
        ["did you mean 'mp_hcnn'", "there is no folder none"],
        files={"in.jsonl": NESTED_ROW},
    ),
    Mistake(
        "a folder that is not there for a batch",
        "batch --input in.jsonl --output out --input none",
        ["--input: there is no none"],
        files={"in.jsonl": NESTED_ROW},
    ),
    Mistake(
        "an output in another format",
        "batch --input in.jsonl --output out --output out.parquet",
        ["expected another file, of the input's format"],
        files={"in.jsonl": NESTED_ROW},
    ),
    Mistake(
        "pairs on a cluster",
        "batch --input in.jsonl --output out --address local",
        ["found pairs, expected rows with posts"],
        code=1,
        files={"in.jsonl": PAIR_ROW},
    ),
]

FETCH = [
    Mistake(
        "unknown data",
        "fetch mb2021 glove",
        ["'mb2021'", "did you mean 'mb20", "'glove'"],
    ),
]

CLICKS = [
    Mistake(
        "a log without searches",
        "clicks log.jsonl --output qrels.txt",
        ["log.jsonl: found 0 impressions and no click"],
        code=1,
        files={"log.jsonl": ""},
    ),
    Mistake(
        "a log with a broken line",
        "clicks log.jsonl --output qrels.txt",
        ["log.jsonl:2: ", "log.jsonl: found 1 impressions and no click"],
        code=1,
        files={"log.jsonl": '{"query": "x", "shown": ["1"], "clicked": []}\n{\n'},
    ),
    Mistake(
        "a log that would be overwritten",
        "clicks log.jsonl --output log.jsonl",
        ["--output: found log.jsonl, expected another file than the log"],
        files={"log.jsonl": '{"query": "x", "shown": ["1"], "clicked": ["1"]}\n'},
    ),
]

COMPARE = [
    Mistake(
        "a log without interleaved searches",
        "compare log.jsonl",
        ["log.jsonl:1: ", "log.jsonl: found no interleaved search"],
        code=1,
        files={"log.jsonl": "{\n"},
    ),
]

# The data folder is empty. Mistakes in arguments are reported before the missing files.
WITHOUT_DATA = [
    Mistake(
        "best candidates of a collection whose candidates are given",
        "search --topics trecqa-raw --hits 5",
        ["--hits: trecqa-raw is not searched"],
    ),
    Mistake(
        "a fusion of searches for given candidates",
        "search --topics trecqa-raw --reranker fusion",
        ["--reranker: found fusion, but trecqa-raw is not searched"],
    ),
    Mistake(
        "unknown model of a search",
        "search --topics mb2012 --reranker bert",
        ["--reranker: found 'bert', expected one of"],
    ),
    Mistake(
        "unknown parameter of a search",
        "search --topics mb2012 --parameter nu=1",
        ["--parameter nu=1: found the name 'nu'"],
    ),
    Mistake(
        "no model to explain",
        "explain --topics mb2012 --query-id 51 --reranker none",
        ["--reranker none: there is nothing to explain"],
    ),
    Mistake(
        "a fusion to explain, and a method",
        "explain --topics mb2012 --query-id 51 --reranker fusion --method bm25",
        ["--method: fusion takes the rankers"],
    ),
    Mistake(
        "given candidates to explain, and a method",
        "explain --topics trecqa-raw --query-id 1 --method bm25",
        ["--method: trecqa-raw is not searched"],
    ),
    Mistake(
        "unknown model for runs",
        "rerank --topics mb2012 --reranker bert small.run",
        ["--reranker: found 'bert', expected one of"],
    ),
    Mistake(
        "a collection's run compared with itself",
        "evaluate mb2012 small.run --against small.run",
        ["--against: found no other run"],
    ),
    Mistake(
        "unknown measure to tune for",
        "tune --test mb2012 --measure foo",
        ["found the measure 'foo'"],
    ),
    Mistake(
        "unknown setting of a fusion",
        "train fusion --test mb2012 --set dpeth=3",
        ["--set dpeth=3: found the name 'dpeth'"],
    ),
    Mistake(
        "unknown year to train on",
        "train mp_hcnn --test mb2012 --train-on mb2099",
        ["collection 'mb2099'"],
    ),
    Mistake(
        "no engine for a log",
        "serve --port 0 --collection mb2012 --log log",
        ["--log: found no --engine"],
    ),
]

# Files that cannot be read come after mistakes in arguments.
WITH_BAD_FILES = [
    Mistake(
        "keys that cannot be read, and a log of no engine",
        "serve --port 0 --api-key-file keys --log log",
        ["--log: found no --engine"],
        files={"keys": "\n"},
    ),
    Mistake(
        "keys that cannot be read, and no service",
        "engine install --engine NOWHERE --api-key-file keys --pipeline *",
        ["--service is missing", "--pipeline: expected letters"],
        files={"keys": "\n"},
    ),
    Mistake(
        "rows that cannot be read, and an unknown collection",
        "batch --input in.jsonl --output out --collection nosuch",
        ["found neither a file nor a collection 'nosuch'"],
        files={"in.jsonl": "{\n"},
    ),
]

MISTAKES = (
    SEARCH
    + EXPLAIN
    + RERANK
    + EVALUATE
    + INDEX
    + TRAIN
    + ADAPT
    + TUNE
    + SERVE
    + ENGINE
    + BATCH
    + FETCH
    + CLICKS
    + COMPARE
    + WITHOUT_DATA
    + WITH_BAD_FILES
)
