"""Words to identifiers, word vectors from files, and inverse document frequencies."""

import gzip
import json
import math
import zlib
from pathlib import Path

import numpy as np
import pytest
import wordfreq

from rerankers.errors import RerankerError
from rerankers.text import vectors as files
from rerankers.text.vectors import OTHERS_LENGTH, WORD2VEC_LENGTH, WordVectors
from rerankers.text.vocabulary import Idf, Vocabulary, word_frequencies
from rerankers.text.words import character_trigrams

MATRIX = np.array([[0.5, -1.25, 3.0], [1e-3, 2.0, -7.5]], dtype=np.float32)


def small() -> Vocabulary:
    return Vocabulary(["the", "bbc"], MATRIX, buckets=100)


def test_known_words_come_first_and_unknown_ones_are_hashed() -> None:
    bucket = zlib.crc32("océan".encode()) % 100
    assert small().ids(["bbc", "the", "océan", "bbc"]) == [2, 1, 3 + bucket, 2]
    assert small().ids([]) == []
    # A literal: with another hash every shipped checkpoint would misread unknown words.
    assert Vocabulary([], np.zeros((0, 3), np.float32)).ids(["hello"]) == [1 + 0x3610A686 % 32768]


def test_build_keeps_used_and_common_words_that_have_vectors() -> None:
    vectors = WordVectors(
        ["the", "of", "bbc", "cuts", "rare", "never"], np.arange(12, dtype=np.float32).reshape(6, 2)
    )
    texts = ["BBC cuts", "#bbc bbc", "rare rare rare", "cuts novector", "novector"]
    vocabulary = Vocabulary.build(texts, vectors, minimum_count=2, common=1)
    assert vocabulary.known == ["the", "bbc", "cuts"]
    np.testing.assert_array_equal(vocabulary.vectors, [[0, 1], [4, 5], [6, 7]])
    assert Vocabulary.build([], vectors, common=2).known == ["the", "of"]


WHOLE = {"format": 1, "buckets": 5, "vector_size": 3, "words": ["a"]}


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        "\udcff",
        *(json.dumps({k: v for k, v in WHOLE.items() if k != key}) for key in WHOLE),
        json.dumps(WHOLE | {"format": 2}),
        json.dumps(WHOLE | {"words": 7}),
        json.dumps(WHOLE | {"vector_size": "x"}),
    ],
)
def test_a_damaged_vocabulary_is_an_error_that_names_the_file(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "vocabulary.json"
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(RerankerError, match=r"vocabulary\.json: found"):
        Vocabulary.load(path)


TEXT = "bbc 0.5 -1.25 3.0\nthe 1e-3 2 -7.5\n"
BINARY = b"2 3\nbbc " + MATRIX[0].tobytes() + b"\nthe " + MATRIX[1].tobytes() + b"\n"
FILES = {
    "with_header.txt": b"2 3\n" + TEXT.encode(),
    "windows.txt": TEXT.replace("\n", " \r\n").encode(),
    "no_last_newline.txt.gz": gzip.compress(TEXT.encode().rstrip()),
    "word2vec.bin": BINARY,
    "no_newlines.bin.gz": gzip.compress(BINARY.replace(b"\nthe", b"the")),
}


@pytest.mark.parametrize("name", FILES)
def test_vectors_of_every_form(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    vectors = files.read_vectors(tmp_path / name)
    assert vectors.words == ["bbc", "the"]
    assert vectors.matrix.dtype == np.float32
    np.testing.assert_array_equal(vectors.matrix, MATRIX)


@pytest.mark.parametrize(
    ("length", "expected"),
    [(WORD2VEC_LENGTH * 1.2, WORD2VEC_LENGTH * 1.2), (6.1, OTHERS_LENGTH), (1.0, OTHERS_LENGTH)],
)
def test_vectors_but_those_of_word2vec_get_one_length(length: float, expected: float) -> None:
    matrix = MATRIX / np.linalg.norm(MATRIX, axis=1, keepdims=True) * length
    scaled = files.of_word2vec_length(matrix)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), expected, rtol=1e-5)
    np.testing.assert_allclose(scaled * (length / expected), matrix, rtol=1e-5)
    # Zeros, which a checkpoint fills, stay zeros.
    assert not files.of_word2vec_length(np.zeros((2, 3), np.float32)).any()
    assert files.of_word2vec_length(np.zeros((0, 3), np.float32)).shape == (0, 3)


DAMAGED = {
    "absent.txt": None,
    "empty.txt": b"",
    "one_number_short.txt": TEXT.encode() + b"of 1 2\n",
    "only_header.txt": b"2 3\n",
    "cut.bin": BINARY[:-9],
    "text.bin": TEXT.encode(),
    "too_many.bin": b"99999999999999 300\nbbc ",
    "negative.bin": b"-2 3\n" + BINARY[4:],
    "cut.txt.gz": gzip.compress(TEXT.encode())[:-9],
    "not_a_number.txt": b"bbc nan 1 2\n",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_vectors_are_an_error_that_names_the_file(tmp_path: Path, name: str) -> None:
    content = DAMAGED[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RerankerError, match=name):
        files.read_vectors(tmp_path / name)


def test_idf_is_the_formula_of_its_docstring() -> None:
    idf = Idf.from_document_frequencies({"the": 1000, "cuts": 10, "once": 1}, 1000, "test")
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
    np.testing.assert_allclose(the, [-math.log(1 - math.exp(-s)) for s in shares], rtol=1e-6)
    unknown = idf.trigram_weights(character_trigrams(["zzz"]).values)
    np.testing.assert_allclose(unknown, [math.log(60)] * 3, rtol=1e-6)


ODD_TEXT = """
' '' a i I The NASA o'clock n't 's l'arc rock'n'roll don’t 0 7 00 42 2014 1,000 3.5 007 4g h1n1
9000km 1st a_b _ café straße ı ſ ﬁ 🙂 a🙂 日本語 中 ไทย москва كلمة १२ ² ½ qzxvkq bbc-news @s ª ℌ
"""
ODD_WORDS = [*ODD_TEXT.split(), "", " ", "\n", "a\nb", "two words", "\u0301", "\ud83d", "\0"]


def test_word_frequencies_are_those_of_wordfreq() -> None:
    frequency = word_frequencies("en")
    listed = list(wordfreq.get_frequency_dict("en", "best"))[::370]
    words = [*ODD_WORDS, *listed, *map(str.upper, listed[:100])]
    assert [(word, frequency(word)) for word in words] == [
        (word, wordfreq.word_frequency(word, "en")) for word in words
    ]
    cuts, never = Idf.from_wordfreq().weights(["cuts", "qzxvkq"])
    rarity = 1 / (15 * wordfreq.word_frequency("cuts", "en"))
    assert [cuts, never] == pytest.approx([math.log(1 + rarity) / math.log(1 + 1e7), 1.0])


def test_frequencies_of_other_languages_are_of_our_words() -> None:
    """Words without accents and pairs of characters have the sums over wordfreq's words."""
    listed = wordfreq.get_frequency_dict("tr", "best")
    both = listed["açık"] + listed["acık"]
    assert word_frequencies("tr")("acık") == pytest.approx(both)
    assert word_frequencies("tr")("2014") == wordfreq.word_frequency("2014", "en")
    pairs = word_frequencies("ko")
    assert pairs("한국") >= wordfreq.get_frequency_dict("ko", "best")["한국"] > pairs("국한")


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (None, "idf.tsv:"),
        (b"", "idf.tsv:1:"),
        (b"many\nthe\t3\n", "idf.tsv:1:"),
        (b"0\nthe\t0\n", "idf.tsv:1:"),
        (b"10\nthe\t3\nof\tx\n", "idf.tsv:3:"),
        (b"10\n\t3\n", "idf.tsv:2:"),
        (b"10\n\xff\t3\n", "idf.tsv:"),
        ("10\nthe\t²\n".encode(), "idf.tsv:2:"),
    ],
)
def test_a_damaged_idf_file_is_an_error_that_names_file_and_line(
    tmp_path: Path, content: bytes | None, place: str
) -> None:
    if content is not None:
        (tmp_path / "idf.tsv").write_bytes(content)
    with pytest.raises(RerankerError, match=place):
        Idf.read(tmp_path / "idf.tsv")
