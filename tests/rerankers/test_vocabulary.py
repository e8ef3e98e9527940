"""Words to identifiers, word vectors from files and in spaces, and inverse document frequencies."""

import gzip
import importlib.util
import json
import math
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import wordfreq
from conftest import Patch
from helpers.reranking_samples import encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from tweetrerank.rerankers.checkpoint import idf_from
from tweetrerank.rerankers.features.text_tables import WordTable
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text import spaces
from tweetrerank.rerankers.text import vectors as files
from tweetrerank.rerankers.text.spaces import (
    AdaptedSpace,
    WordSpace,
    description_of,
    general,
)
from tweetrerank.rerankers.text.vectors import (
    OTHERS_LENGTH,
    WORD2VEC_LENGTH,
    WordVectors,
)
from tweetrerank.rerankers.text.vocabulary import (
    Idf,
    Vocabulary,
    document_frequencies,
    word_frequencies,
)
from tweetrerank.rerankers.text.words import character_trigrams

MATRIX = np.array([[0.5, -1.25, 3.0], [1e-3, 2.0, -7.5]], dtype=np.float32)


def test_known_words_come_first_and_unknown_ones_are_hashed() -> None:
    vocabulary = Vocabulary(["the", "bbc"], MATRIX, buckets=100)
    bucket = zlib.crc32("océan".encode()) % 100
    assert vocabulary.ids(["bbc", "the", "océan", "bbc"]) == [2, 1, 3 + bucket, 2]
    assert vocabulary.ids([]) == []
    # A literal: with another hash every shipped checkpoint would misread unknown words.
    assert Vocabulary([], np.zeros((0, 3), np.float32)).ids(["hello"]) == [
        1 + 0x3610A686 % 32768
    ]


def test_build_keeps_used_and_common_words_that_have_vectors() -> None:
    listed = ["the", "of", "bbc", "cuts", "rare", "never"]
    vectors = WordVectors(listed, np.arange(12, dtype=np.float32).reshape(6, 2))
    texts = ["BBC cuts", "#bbc bbc", "rare rare rare", "cuts novector", "novector"]
    vocabulary = Vocabulary.build(texts, vectors, minimum_count=2, common=1)
    assert vocabulary.known == ["the", "bbc", "cuts"]
    np.testing.assert_array_equal(vocabulary.vectors, [[0, 1], [4, 5], [6, 7]])
    assert Vocabulary.build([], vectors, common=2).known == ["the", "of"]


TEXT = "bbc 0.5 -1.25 3.0\nthe 1e-3 2 -7.5\n"
BINARY = b"2 3\nbbc " + MATRIX[0].tobytes() + b"\nthe " + MATRIX[1].tobytes() + b"\n"
FILES = {
    "with_header.txt": b"2 3\n" + TEXT.encode(),
    "windows.txt": TEXT.replace("\n", " \r\n").encode(),
    "no_last_newline.txt.gz": gzip.compress(TEXT.encode().rstrip(), mtime=0),
    "word2vec.bin": BINARY,
    "no_newlines.bin.gz": gzip.compress(BINARY.replace(b"\nthe", b"the"), mtime=0),
}


@pytest.mark.parametrize("name", FILES)
def test_vectors_of_every_form(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    vectors = files.read_vectors(tmp_path / name)
    assert (vectors.words, vectors.matrix.dtype) == (["bbc", "the"], np.float32)
    np.testing.assert_array_equal(vectors.matrix, MATRIX)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (WORD2VEC_LENGTH * 1.2, WORD2VEC_LENGTH * 1.2),
        (6.1, OTHERS_LENGTH),
        (1.0, OTHERS_LENGTH),
    ],
)
def test_vectors_but_those_of_word2vec_get_one_length(
    length: float, expected: float
) -> None:
    matrix = MATRIX / np.linalg.norm(MATRIX, axis=1, keepdims=True) * length
    scaled = files.of_word2vec_length(matrix)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), expected, rtol=1e-5)
    np.testing.assert_allclose(scaled * (length / expected), matrix, rtol=1e-5)
    # Zeros, which a checkpoint fills, stay zeros.
    assert not files.of_word2vec_length(np.zeros((2, 3), np.float32)).any()
    assert files.of_word2vec_length(np.zeros((0, 3), np.float32)).shape == (0, 3)


WHOLE = {"format": 1, "buckets": 5, "vector_size": 3, "words": ["a"]}
WRONG = [{k: v for k, v in WHOLE.items() if k != key} for key in WHOLE]
WRONG += [WHOLE | {"format": 2}, WHOLE | {"words": 7}, WHOLE | {"vector_size": "x"}]
VOCABULARIES = [
    None,
    b"",
    b"[]",
    b"\xff",
    *(json.dumps(each).encode() for each in WRONG),
]
VECTORS: dict[str, bytes | None] = {
    "absent.txt": None,
    "empty.txt": b"",
    "text.bin": TEXT.encode(),
}
VECTORS |= {"only_header.txt": b"2 3\n", "not_a_number.txt": b"bbc nan 1 2\n"}
VECTORS |= {"one_number_short.txt": TEXT.encode() + b"of 1 2\n", "cut.bin": BINARY[:-9]}
VECTORS |= {
    "too_many.bin": b"99999999999999 300\nbbc ",
    "negative.bin": b"-2 3\n" + BINARY[4:],
}
VECTORS |= {"cut.txt.gz": gzip.compress(TEXT.encode(), mtime=0)[:-9]}
FREQUENCIES = [
    (None, ""),
    (b"", "1:"),
    (b"many\nthe\t3\n", "1:"),
    (b"0\nthe\t0\n", "1:"),
]
FREQUENCIES += [
    (b"10\nthe\t3\nof\tx\n", "3:"),
    (b"10\n\t3\n", "2:"),
    (b"10\n\xff\t3\n", ""),
]
FREQUENCIES += [("10\nthe\t²\n".encode(), "2:")]
DAMAGED = [
    *(("vocabulary.json", content, "found") for content in VOCABULARIES),
    *((name, content, "") for name, content in VECTORS.items()),
    *(("idf.tsv", content, place) for content, place in FREQUENCIES),
]


@pytest.mark.parametrize(("name", "content", "place"), DAMAGED)
def test_a_damaged_file_is_an_error_that_names_file_and_line(
    tmp_path: Path, name: str, content: bytes | None, place: str
) -> None:
    read = {"vocabulary.json": Vocabulary.load, "idf.tsv": Idf.read}.get(
        name, files.read_vectors
    )
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RerankerError, match=rf"{name}:? ?{place}"):
        read(tmp_path / name)


def test_idf_is_the_formula_of_its_docstring() -> None:
    idf = Idf.from_document_frequencies(
        {"the": 1000, "cuts": 10, "once": 1}, 1000, "test"
    )
    expected = [math.log(1 + 1000 / n) / math.log(1 + 1000) for n in (1000, 10, 1, 1)]
    weights = idf.weights(["the", "cuts", "once", "never seen"])
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    assert weights[3] == pytest.approx(1.0)
    assert idf.weights([]).shape == (0,)


def test_trigrams_of_frequent_words_have_a_low_idf() -> None:
    idf = Idf.from_document_frequencies({"the": 60, "then": 3, "cat": 6}, 60, "counts")
    the = idf.trigram_weights(character_trigrams(["the"]).values)
    shares = [63 / 60, 63 / 60, 60 / 60]  # Of #th, the and he#
    np.testing.assert_allclose(
        the, [-math.log(1 - math.exp(-s)) for s in shares], rtol=1e-6
    )
    unknown = idf.trigram_weights(character_trigrams(["zzz"]).values)
    np.testing.assert_allclose(unknown, [math.log(60)] * 3, rtol=1e-6)


ODD_TEXT = """
' '' a i I The NASA o'clock n't 's l'arc rock'n'roll don’t 0 7 00 42 2014 1,000 3.5 007 4g h1n1
9000km 1st a_b _ café straße ı ſ ﬁ 🙂 a🙂 日本語 中 ไทย москва كلمة १२ ² ½ qzxvkq bbc-news @s ª ℌ
"""
ODD_WORDS = [
    *ODD_TEXT.split(),
    "",
    " ",
    "\n",
    "a\nb",
    "two words",
    "\u0301",
    "\ud83d",
    "\0",
]


def test_word_frequencies_are_those_of_wordfreq() -> None:
    frequency = word_frequencies("en")
    listed = list(wordfreq.get_frequency_dict("en", "best"))[::370]
    words = [*ODD_WORDS, *listed, *map(str.upper, listed[:100])]
    assert {w: frequency(w) for w in words} == {
        w: wordfreq.word_frequency(w, "en") for w in words
    }
    cuts, never = Idf.from_wordfreq().weights(["cuts", "qzxvkq"])
    rarity = 1 / (15 * wordfreq.word_frequency("cuts", "en"))
    assert [cuts, never] == pytest.approx(
        [math.log(1 + rarity) / math.log(1 + 1e7), 1.0]
    )


def test_frequencies_of_other_languages_are_of_our_words() -> None:
    """Words without accents and pairs of characters have the sums over wordfreq's words."""
    listed = wordfreq.get_frequency_dict("tr", "best")
    same = (
        listed["açık"] + listed["acık"] + listed.get("açik", 0) + listed.get("acik", 0)
    )
    assert word_frequencies("tr")("acik") == pytest.approx(same)
    assert word_frequencies("tr")("2014") == wordfreq.word_frequency("2014", "en")
    pairs = word_frequencies("ko")
    assert (
        pairs("한국")
        >= wordfreq.get_frequency_dict("ko", "best")["한국"]
        > pairs("국한")
    )


WORDS = ["storm", "water", "bbc", "don't", "zxqv", "日本", "naïve", "42"]


def adapted(
    words: Sequence[str] = ("storm", "日本", "zxqv"), size: int = 5
) -> AdaptedSpace:
    random = np.random.default_rng(1)
    codes = random.integers(-127, 128, size=(len(words), size)).astype(np.int8)
    scales = random.random(len(words)).astype(np.float32)
    return AdaptedSpace(
        words, codes, scales, random.normal(size=(256, size)).astype(np.float32)
    )


def test_a_general_vector_is_the_sum_of_the_pieces() -> None:
    """By the package wordllama, which gives their mean."""
    wordllama = pytest.importorskip("wordllama")
    folder = Path(str(wordllama.__file__)).parent
    theirs = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    odd = ["", " ", "😀", "two words", "x" * 3000, "no\0thing", "a\nb"]
    means = theirs.embed([*WORDS, *odd])
    counts = [
        len(theirs.tokenizer.encode(w, add_special_tokens=False))
        for w in [*WORDS, *odd]
    ]
    assert counts[-len(odd)] == 0 and max(counts[: len(WORDS)]) > 1
    expected = means * np.array(counts)[:, None]
    found = general().vectors([*WORDS, *odd])
    assert found.dtype == np.float32 and found.shape == (
        len(WORDS + odd),
        general().size,
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)


def test_words_of_posts_are_counted_and_smoothed_by_general_ones(
    tmp_path: Path,
) -> None:
    """Posts, not occurrences, also over blocks; as of a thousand posts more of general usage."""
    texts, path = (
        ["Storm #storm", "", "a STORM, a ferry\u2028"] * 3000,
        tmp_path / "posts.tsv",
    )
    done = list[int]()
    path.write_text(document_frequencies(texts, done.append), encoding="utf-8")
    assert sum(done) == len(texts) and len(done) > 1
    found, general = idf_from(f"posts:en:{path}"), idf_from("wordfreq")
    for word, count in {
        "storm": 6000,
        "a": 3000,
        "ferry": 3000,
        "the": 0,
        "zxqv": 0,
    }.items():
        assert found.share(word) == pytest.approx(
            (count + 1000 * general.share(word)) / 10_000
        )
    assert (
        sorted(found.known()) == ["a", "ferry", "storm"]
        and found.posts == general.posts
    )
    without = idf_from("posts:de")
    assert (
        without.share("der")
        == idf_from("wordfreq:de").share("der")
        > general.share("der")
    )


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=30), max_size=5))
def test_every_string_has_a_general_vector(texts: list[str]) -> None:
    """Also those with lone surrogates, and whatever other words are asked for."""
    found = general().vectors(texts)
    assert found.shape == (len(texts), general().size) and np.isfinite(found).all()
    for text, vector in zip(texts, found, strict=True):
        np.testing.assert_array_equal(general().vectors([text])[0], vector)


def test_a_table_has_the_vectors_of_its_words_in_every_space() -> None:
    """In many threads, whichever words were looked up before, each computed once."""
    asked: list[str] = []

    def lengths(
        words: Sequence[str],
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        asked.extend(words)
        return np.array([[len(w)] for w in words], np.float32), np.ones(
            len(words), np.float32
        )

    table, random = WordTable(encoder().idf), np.random.default_rng(3)
    spaces = [
        WordSpace(1, lengths),
        WordSpace(1, lambda words: lengths([w * 2 for w in words])),
    ]
    words = [f"{number}x" * number for number in range(1, 200)]

    def check(number: int) -> None:
        some = random.permutation(words)[: number % 100].tolist()
        vectors, norms, _ = table.vectors(table.rows(some), spaces[number % 2])
        assert vectors[:, 0].tolist() == norms.tolist()
        assert norms.tolist() == [len(word) * (1 + number % 2) for word in some]

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(check, range(200)))
    assert len(asked) == len({*asked})


def test_an_adapted_vector_is_the_mapped_general_one_and_what_posts_add() -> None:
    space = adapted()
    found, base = space.vectors(["zxqv", "water", "storm"]), general()
    for vector, word in zip(found, ["zxqv", "water", "storm"], strict=True):
        expected = base.vectors([word])[0] @ space.linear
        if word in space.words:
            row = space.words.index(word)
            expected = expected + space.codes[row] * space.scales[row]
        np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-4)
        assert space.knows(word) == (word in space.words)
    assert not np.allclose(found[0], base.vectors(["zxqv"]) @ space.linear)


@pytest.mark.parametrize("words", [("storm", "日本", "zxqv"), ()])
def test_an_adapted_space_is_the_same_after_loading(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    space = adapted(words)
    path = tmp_path / "mine.safetensors"
    path.write_bytes(space.content({"teacher": "tiny"}))
    again = AdaptedSpace.load(path)
    asked = [*WORDS, "", "😀", "\ud800"]
    np.testing.assert_array_equal(again.vectors(asked), space.vectors(asked))
    assert again.words == list(words) and description_of(path)["teacher"] == "tiny"


@pytest.mark.filterwarnings("ignore:.*made by an earlier version")
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path, right = tmp_path / "mine.safetensors", {"format": spaces.FORMAT}
    path.write_bytes(content := adapted().content({}))
    arrays = load_file(path)
    save_file(arrays, path, right)
    with pytest.warns(
        RuntimeWarning, match=r"mine\.safetensors: made by an earlier version"
    ):
        AdaptedSpace.load(path)
    for damage in (
        lambda: path.write_bytes(content[:-3]),
        lambda: path.write_bytes(content[:-1] + bytes([content[-1] ^ 1])),
        lambda: path.write_bytes(b"no table"),
        lambda: save_file({"words": arrays["words"]}, path, right),
        lambda: save_file(arrays | {"scales": np.ones(2)}, path, right),
        lambda: save_file(arrays | {"linear": np.ones((2, 5))}, path, right),
        lambda: save_file(arrays, path, {"format": "0"}),
        path.unlink,
    ):
        damage()
        with pytest.raises(
            RerankerError, match=r"mine\.safetensors: found(?s:.*)pipeline\.adapt"
        ):
            AdaptedSpace.load(path)


def test_a_missing_or_damaged_package_is_named(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "wordllama").mkdir()
    (tmp_path / "wordllama" / "__init__.py").touch()
    empty = PathFinder.find_spec("wordllama", [str(tmp_path)])
    for spec, problem in (
        (None, "package wordllama"),
        (empty, "word vectors that can be read"),
    ):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _, spec=spec: spec)
        with pytest.raises(RerankerError, match=f"found no {problem}"):
            general.__wrapped__()  # without the cache
