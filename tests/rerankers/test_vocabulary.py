"""Words to identifiers, word vectors from files and in spaces, and IDF."""

import gzip
import importlib.util
import math
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec, PathFinder
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

Floats = npt.NDArray[np.float32]

MATRIX = np.array(
    [[0.5, -1.25, 3.0], [1e-3, 2.0, -7.5]],
    dtype=np.float32,
)


def test_known_words_come_first_and_unknown_words_are_hashed() -> None:
    vocabulary = Vocabulary(
        ["the", "bbc"],
        MATRIX,
        buckets=100,
    )
    bucket = zlib.crc32("océan".encode()) % 100
    assert vocabulary.ids(["bbc", "the", "océan", "bbc"]) == [2, 1, 3 + bucket, 2]
    assert vocabulary.ids([]) == []


# A literal: with another hash every shipped checkpoint would misread unknown words.
def test_the_hash_is_that_of_trained_weights() -> None:
    vocabulary = Vocabulary(
        [],
        np.zeros((0, 3), np.float32),
    )
    assert vocabulary.ids(["hello"]) == [1 + 0x3610A686 % 32768]


LISTED = WordVectors(
    ["the", "of", "bbc", "cuts", "rare", "never"],
    np.arange(12, dtype=np.float32).reshape(6, 2),
)


def test_build_selects_words_of_several_texts_and_common_words() -> None:
    texts = ["BBC cuts", "#bbc bbc", "rare rare rare", "cuts novector", "novector"]
    vocabulary = Vocabulary.build(
        texts,
        LISTED,
        minimum_count=2,
        common=1,
    )
    assert vocabulary.known == ["the", "bbc", "cuts"]
    np.testing.assert_array_equal(
        vocabulary.vectors,
        [[0, 1], [4, 5], [6, 7]],
    )


def test_build_without_texts_selects_common_words() -> None:
    assert Vocabulary.build([], LISTED, common=2).known == ["the", "of"]


TEXT = b"bbc 0.5 -1.25 3.0\nthe 1e-3 2 -7.5\n"
BINARY = b"2 3\nbbc " + MATRIX[0].tobytes() + b"\nthe " + MATRIX[1].tobytes() + b"\n"
FILES = {
    "with_header.txt": b"2 3\n" + TEXT,
    "windows.txt": TEXT.replace(b"\n", b" \r\n"),
    "no_last_newline.txt.gz": gzip.compress(TEXT.rstrip(), mtime=0),
    "word2vec.bin": BINARY,
    "no_newlines.bin.gz": gzip.compress(BINARY.replace(b"\nthe", b"the"), mtime=0),
}


@pytest.mark.parametrize("name", FILES)
def test_vectors_of_every_form(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name])
    vectors = files.read_vectors(path)
    assert vectors.words == ["bbc", "the"]
    assert vectors.matrix.dtype == np.float32
    np.testing.assert_array_equal(vectors.matrix, MATRIX)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        pytest.param(WORD2VEC_LENGTH * 1.2, WORD2VEC_LENGTH * 1.2, id="word2vec"),
        pytest.param(6.1, OTHERS_LENGTH, id="longer"),
        pytest.param(1.0, OTHERS_LENGTH, id="shorter"),
    ],
)
def test_vectors_other_than_word2vec_get_one_length(
    length: float, expected: float
) -> None:
    lengths = np.linalg.norm(
        MATRIX,
        axis=1,
        keepdims=True,
    )
    matrix = MATRIX / lengths * length
    scaled = files.of_word2vec_length(matrix)
    np.testing.assert_allclose(
        np.linalg.norm(scaled, axis=1),
        expected,
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        scaled * (length / expected),
        matrix,
        rtol=1e-5,
    )


def test_vectors_of_zeros_stay_zeros() -> None:
    """A checkpoint fills them."""
    assert not files.of_word2vec_length(np.zeros((2, 3), np.float32)).any()
    assert files.of_word2vec_length(np.zeros((0, 3), np.float32)).shape == (0, 3)


VOCABULARIES = [
    None,  # No file
    b"",
    b"[]",
    b"\xff",
    # Each key missing, then three wrong values
    b'{"buckets": 5, "vector_size": 3, "words": ["a"]}',
    b'{"format": 1, "vector_size": 3, "words": ["a"]}',
    b'{"format": 1, "buckets": 5, "words": ["a"]}',
    b'{"format": 1, "buckets": 5, "vector_size": 3}',
    b'{"format": 2, "buckets": 5, "vector_size": 3, "words": ["a"]}',
    b'{"format": 1, "buckets": 5, "vector_size": 3, "words": 7}',
    b'{"format": 1, "buckets": 5, "vector_size": "x", "words": ["a"]}',
]


@pytest.mark.parametrize("content", VOCABULARIES)
def test_a_damaged_vocabulary_is_an_error(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "vocabulary.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RerankerError, match=r"vocabulary\.json:? ?found"):
        Vocabulary.load(path)


DAMAGED_VECTORS: dict[str, bytes | None] = {
    "absent.txt": None,
    "empty.txt": b"",
    "text.bin": TEXT,
    "only_header.txt": b"2 3\n",
    "not_a_number.txt": b"bbc nan 1 2\n",
    "one_number_short.txt": TEXT + b"of 1 2\n",
    "cut.bin": BINARY[:-9],
    "too_many.bin": b"99999999999999 300\nbbc ",
    "negative.bin": b"-2 3\n" + BINARY[4:],
    "cut.txt.gz": gzip.compress(TEXT, mtime=0)[:-9],
}


@pytest.mark.parametrize("name", DAMAGED_VECTORS)
def test_a_damaged_file_of_vectors_is_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    content = DAMAGED_VECTORS[name]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RerankerError, match=name):
        files.read_vectors(path)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, ""),  # No file
        (b"", "1:"),
        (b"many\nthe\t3\n", "1:"),  # No number of posts
        (b"0\nthe\t0\n", "1:"),  # No posts
        (b"10\nthe\t3\nof\tx\n", "3:"),  # No frequency
        (b"10\n\t3\n", "2:"),  # No word
        (b"10\n\xff\t3\n", ""),  # Not UTF-8
        ("10\nthe\t²\n".encode(), "2:"),  # Not decimal
    ],
)
def test_damaged_frequencies_are_an_error_with_the_line(
    tmp_path: Path, content: bytes | None, line: str
) -> None:
    path = tmp_path / "idf.tsv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RerankerError, match=rf"idf\.tsv:? ?{line}"):
        Idf.read(path)


def test_idf_is_the_formula_of_its_docstring() -> None:
    frequencies = {"the": 1000, "cuts": 10, "once": 1}
    idf = Idf.from_document_frequencies(frequencies, 1000, "test")
    expected = [math.log(1 + 1000 / n) / math.log(1 + 1000) for n in (1000, 10, 1, 1)]
    weights = idf.weights(["the", "cuts", "once", "never seen"])
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    assert weights[3] == pytest.approx(1.0)
    assert idf.weights([]).shape == (0,)


def test_trigrams_of_frequent_words_have_a_low_idf() -> None:
    idf = Idf.from_document_frequencies(
        {"the": 60, "then": 3, "cat": 6},
        60,
        "counts",
    )
    weights = idf.trigram_weights(character_trigrams(["the"]).values)
    # Shares of #th, the and he#
    expected = [-math.log(1 - math.exp(-s)) for s in (63 / 60, 63 / 60, 60 / 60)]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    unknown = idf.trigram_weights(character_trigrams(["zzz"]).values)
    np.testing.assert_allclose(
        unknown,
        [math.log(60)] * 3,
        rtol=1e-6,
    )


ODD_TEXT = """
' '' a i I The NASA o'clock n't 's l'arc rock'n'roll don’t 0 7 00 42 2014 1,000 3.5 007
4g h1n1 9000km 1st a_b _ café straße ı ſ ﬁ 🙂 a🙂 日本語 中 ไทย москва كلمة १२ ² ½
qzxvkq bbc-news @s ª ℌ
"""
ODD_WORDS = ODD_TEXT.split()
ODD_WORDS += ["", " ", "\n", "a\nb", "two words", "\u0301", "\ud83d", "\0"]


def test_word_frequencies_are_those_of_wordfreq() -> None:
    frequency = word_frequencies("en")
    listed = list(wordfreq.get_frequency_dict("en", "best"))[::370]
    words = ODD_WORDS + listed + [word.upper() for word in listed[:100]]
    frequencies = {word: frequency(word) for word in words}
    assert frequencies == {word: wordfreq.word_frequency(word, "en") for word in words}


def test_idf_of_wordfreq_assumes_15_words_a_post() -> None:
    cuts, never = Idf.from_wordfreq().weights(["cuts", "qzxvkq"])
    rarity = 1 / (15 * wordfreq.word_frequency("cuts", "en"))
    assert cuts == pytest.approx(math.log(1 + rarity) / math.log(1 + 1e7))
    assert never == pytest.approx(1.0)


def test_words_without_accents_have_the_sum_of_their_spellings() -> None:
    listed = wordfreq.get_frequency_dict("tr", "best")
    expected = 0.0
    for spelling in ("açık", "acık", "açik", "acik"):
        expected += listed.get(spelling, 0)
    frequency = word_frequencies("tr")
    assert frequency("acik") == pytest.approx(expected)
    assert frequency("2014") == wordfreq.word_frequency("2014", "en")


def test_pairs_of_characters_have_the_sum_of_words_with_them() -> None:
    frequency = word_frequencies("ko")
    listed = wordfreq.get_frequency_dict("ko", "best")
    assert frequency("한국") >= listed["한국"] > frequency("국한")


WORDS = ["storm", "water", "bbc", "don't", "zxqv", "日本", "naïve", "42"]


def adapted(words: Sequence[str] = ("storm", "日本", "zxqv")) -> AdaptedSpace:
    size = 5
    random = np.random.default_rng(1)
    codes = random.integers(-127, 128, size=(len(words), size)).astype(np.int8)
    scales = random.random(len(words)).astype(np.float32)
    linear = random.normal(size=(256, size)).astype(np.float32)
    return AdaptedSpace(words, codes, scales, linear)


def test_a_general_vector_is_the_sum_of_the_pieces() -> None:
    """Compared with the package wordllama, which returns their mean."""
    wordllama = pytest.importorskip("wordllama")
    folder = Path(str(wordllama.__file__)).parent
    model = wordllama.WordLlama.load(
        cache_dir=folder,
        disable_download=True,
    )
    odd = ["", " ", "😀", "two words", "x" * 3000, "no\0thing", "a\nb"]
    words = WORDS + odd
    counts = []
    for word in words:
        pieces = model.tokenizer.encode(word, add_special_tokens=False)
        counts.append(len(pieces))
    assert counts[len(WORDS)] == 0  # The empty word
    assert max(counts[: len(WORDS)]) > 1
    expected = model.embed(words) * np.array(counts)[:, None]
    vectors = general().vectors(words)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(words), general().size)
    np.testing.assert_allclose(
        vectors,
        expected,
        rtol=1e-5,
        atol=1e-3,
    )


def test_posts_with_a_word_are_counted_over_blocks(tmp_path: Path) -> None:
    """Counts are of posts, not of occurrences. General usage adds a thousand posts."""
    texts = ["Storm #storm", "", "a STORM, a ferry\u2028"] * 3000
    path = tmp_path / "posts.tsv"
    blocks: list[int] = []
    path.write_text(
        document_frequencies(texts, blocks.append),
        encoding="utf-8",
    )
    assert sum(blocks) == len(texts)
    assert len(blocks) > 1
    idf = idf_from(f"posts:en:{path}")
    usage = idf_from("wordfreq")
    counts = {"storm": 6000, "a": 3000, "ferry": 3000, "the": 0, "zxqv": 0}
    shares = {word: idf.share(word) for word in counts}
    expected = {}
    for word, count in counts.items():
        expected[word] = (count + 1000 * usage.share(word)) / 10_000
    assert shares == pytest.approx(expected)
    assert sorted(idf.known()) == ["a", "ferry", "storm"]
    assert idf.posts == usage.posts


def test_without_counts_general_usage_is_left() -> None:
    german = idf_from("posts:de")
    assert german.share("der") == idf_from("wordfreq:de").share("der")
    assert german.share("der") > idf_from("wordfreq").share("der")


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=30), max_size=5))
def test_every_string_has_a_general_vector(texts: list[str]) -> None:
    """Also with lone surrogates. It does not depend on the other words of the call."""
    vectors = general().vectors(texts)
    assert vectors.shape == (len(texts), general().size)
    assert np.isfinite(vectors).all()
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_array_equal(
            general().vectors([text])[0],
            vector,
        )


def test_a_table_computes_the_vector_of_a_word_once_in_every_space() -> None:
    """In many threads, in any order of words. Each vector is its word's length."""
    computed: list[str] = []

    def lengths(words: Sequence[str]) -> tuple[Floats, Floats]:
        computed.extend(words)
        vectors = np.array(
            [[len(word)] for word in words],
            np.float32,
        )
        return vectors, np.ones(len(words), np.float32)

    def double_lengths(words: Sequence[str]) -> tuple[Floats, Floats]:
        return lengths([word * 2 for word in words])

    table = WordTable(encoder().idf)
    random = np.random.default_rng(3)
    two_spaces = [WordSpace(1, lengths), WordSpace(1, double_lengths)]
    words = [f"{number}x" * number for number in range(1, 200)]

    def check(number: int) -> None:
        some = random.permutation(words)[: number % 100].tolist()
        rows = table.rows(some)
        vectors, norms, _ = table.vectors(
            rows,
            two_spaces[number % 2],
        )
        factor = 1 + number % 2
        assert norms.tolist() == [len(word) * factor for word in some]
        assert vectors[:, 0].tolist() == norms.tolist()

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(check, range(200)))
    assert len(computed) == len(set(computed))


@pytest.mark.parametrize("word", ["zxqv", "water", "storm"])
def test_an_adapted_vector_is_the_mapped_general_vector_plus_the_posts(
    word: str,
) -> None:
    space = adapted()
    mapped = general().vectors([word])[0] @ space.linear
    vector = space.vectors([word])[0]
    assert space.knows(word) == (word != "water")
    if space.knows(word):
        row = space.words.index(word)
        assert not np.allclose(vector, mapped)
        mapped = mapped + space.codes[row] * space.scales[row]
    np.testing.assert_allclose(
        vector,
        mapped,
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("words", [("storm", "日本", "zxqv"), ()])
def test_an_adapted_space_is_the_same_after_loading(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    space = adapted(words)
    path = tmp_path / "mine.safetensors"
    path.write_bytes(space.content({"teacher": "tiny"}))
    loaded = AdaptedSpace.load(path)
    samples = [*WORDS, "", "😀", "\ud800"]
    np.testing.assert_array_equal(
        loaded.vectors(samples),
        space.vectors(samples),
    )
    assert loaded.words == list(words)
    assert description_of(path)["teacher"] == "tiny"


@pytest.fixture
def adapted_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(adapted().content({}))
    return path


def test_an_adapted_file_of_an_earlier_version_is_read_with_a_warning(
    adapted_file: Path,
) -> None:
    """It has no SHA-256."""
    save_file(
        load_file(adapted_file),
        adapted_file,
        {"format": spaces.FORMAT},
    )
    warning = r"mine\.safetensors: made by an earlier version"
    with pytest.warns(RuntimeWarning, match=warning):
        AdaptedSpace.load(adapted_file)


def save_changed(path: Path, version: str = spaces.FORMAT, **changes: Floats) -> None:
    save_file(load_file(path) | changes, path, {"format": version})


def save_words_alone(path: Path) -> None:
    save_file({"words": load_file(path)["words"]}, path, {"format": spaces.FORMAT})


def change_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "last byte": change_last_byte,
    "another form": lambda path: path.write_bytes(b"no table"),
    "words alone": save_words_alone,
    "too few scales": lambda path: save_changed(path, scales=np.ones(2)),
    "too few dimensions": lambda path: save_changed(path, linear=np.ones((2, 5))),
    "another format": lambda path: save_changed(path, version="0"),
    "no file": Path.unlink,
}


@pytest.mark.filterwarnings("ignore:.*made by an earlier version")
@pytest.mark.parametrize("damage", DAMAGES)
def test_an_adapted_file_that_cannot_be_read_is_named(
    adapted_file: Path, damage: str
) -> None:
    DAMAGES[damage](adapted_file)
    message = r"mine\.safetensors: found(?s:.*)pipeline\.adapt"
    with pytest.raises(RerankerError, match=message):
        AdaptedSpace.load(adapted_file)


def general_in(
    spec: ModuleSpec | None,
    monkeypatch: Patch,
) -> WordSpace:
    """The general space without its cache, with another location of the package."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    return general.__wrapped__()


def test_a_missing_package_is_named(monkeypatch: Patch) -> None:
    with pytest.raises(RerankerError, match="found no package wordllama"):
        general_in(None, monkeypatch)


def test_a_damaged_package_is_named(tmp_path: Path, monkeypatch: Patch) -> None:
    folder = tmp_path / "wordllama"
    folder.mkdir()
    (folder / "__init__.py").touch()
    spec = PathFinder.find_spec("wordllama", [str(tmp_path)])
    with pytest.raises(RerankerError, match="found no word vectors that can be read"):
        general_in(spec, monkeypatch)
