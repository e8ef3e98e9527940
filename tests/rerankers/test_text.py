"""Posts, queries and URLs to words, stems and trigrams: hand-made cases, invariants."""

import json
from itertools import pairwise, product
from string import ascii_lowercase

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nltk.stem import PorterStemmer

from tweetrerank.rerankers.checkpoint import SHIPPED
from tweetrerank.rerankers.model import VOCABULARY
from tweetrerank.rerankers.text import spellings
from tweetrerank.rerankers.text import words as reading
from tweetrerank.rerankers.text.lexicon import Lexicon
from tweetrerank.rerankers.text.ragged import (
    Ragged,
    code_points,
    distinct,
    distinct_grams,
)
from tweetrerank.rerankers.text.stems import stem
from tweetrerank.rerankers.text.words import (
    STOP_WORDS,
    character_trigrams,
    hashtags,
    url_text,
    words,
)

# Text, and its words separated by spaces
TEXTS = [
    pytest.param("", "", id="no-text"),
    pytest.param(
        "RT @bbc: BBC World Service cuts to come",
        "rt bbc world service cuts to come",
        id="retweet-and-mention",
    ),
    pytest.param("@bob@alice hi@you.", "hi", id="mentions-next-to-each-other"),
    pytest.param("#bbcCuts now", "bbccuts now", id="hashtag"),
    pytest.param("look http://t.co/xY1?a=b now", "look now", id="link"),
    pytest.param(
        "look https://bbc.co.uk/a,b www.bbc.co.uk/c now",
        "look now",
        id="links-with-comma-and-www",
    ),
    pytest.param(
        "sooooo gooood!!! hmmmm, soo good",
        "soo good hmm soo good",
        id="repeated-letters",
    ),
    pytest.param(
        "banana 10000 bbb aaab", "banana 10000 bb aab", id="twice-is-not-repeated"
    ),
    pytest.param(
        "10000 people, 2011, aaa111 yyyy2000",
        "10000 people 2011 aa111 yy2000",
        id="repeated-digits-stay",
    ),
    pytest.param("snake_case __init__", "snake case init", id="underscores"),
    pytest.param(
        "café MÜNCHEN naïve cafe\u0301",
        "cafe munchen naive cafe",
        id="accents-of-latin-script",
    ),
    pytest.param("ﬁne ｗｉｄｅ ① Ⓗi", "fine wide 1 hi", id="compatibility-forms"),
    pytest.param("𝐇𝐞𝐥𝐥𝐨", "hello", id="styled-letters"),
    pytest.param(
        "احتجاجات في القاهرة протесты 地震",
        "احتجاجات في القاهره протесты 地震",
        id="several-scripts",
    ),
    pytest.param(
        "東京タワーの高さは３３３ m",
        "東京 京タ タワ ワー ーの の高 高さ さは 333 m",
        id="japanese-pairs",
    ),
    pytest.param(
        "です ｶﾞｷﾞ 地 東京's 한국어는",
        "です ガギ 地 東京 s 한국 국어 어는",
        id="pairs-in-mixed-scripts",
    ),
    pytest.param(
        "ไทยนี้น่ารัก မြန်မာ",
        "ไท ทย ยนี้ นี้น่ น่า ารั รัก မြန် န်မ မာ",
        id="thai-and-burmese-pairs",
    ),
    pytest.param("क्या हिन्दी", "क्या हिंदी", id="devanagari-marks-are-letters"),
    pytest.param(
        "مَرْحَبًـــا שָׁלוֹם",
        "مرحبا שלום",
        id="arabic-and-hebrew-vowel-marks",
    ),
    pytest.param(
        "Ёлка за\u0301мок Київ йод ΛΌΓΟΣ",
        "елка замок київ йод λογος",
        id="cyrillic-and-greek-accents",
    ),
    # Tones are letters in words of Vietnamese letters; in other words they are
    # accents, because a query may have no other word.
    pytest.param(
        "Bệnh viện ở Hà Nội, cà-phê PHỞ",
        "bệnh viện ở ha nội ca phe phở",
        id="vietnamese",
    ),
    # A tone has two places in Vietnamese.
    pytest.param(
        "thuỷ thủy họa hoạ", "thuỷ thuỷ hoạ hoạ", id="vietnamese-places-of-a-tone"
    ),
    # Turkish has two letters i. Ukrainian's apostrophe is a letter.
    pytest.param(
        "IŞIK ışık п’ять пʼять",
        "isik isik п'ять п'ять",
        id="turkish-i-and-ukrainian-apostrophe",
    ),
    # Capitals of a ligature, and punctuation within words
    pytest.param("ԵՐԵՎԱՆ Երևան ինչո՞ւ", "երեվան երեվան ինչու", id="armenian"),
    # As in Lucene's Arabic and Persian filters
    pytest.param(
        "على علي فارسی فارسي کتاب كتاب مدرسة",
        "علي علي فارسي فارسي كتاب كتاب مدرسه",
        id="arabic-and-persian-letters",
    ),
    # Invisible characters within words
    pytest.param(
        "می\u200cخواهم Donau\u00adschiff 葛\U000e0100城 1\ufe0f\u20e3",
        "مي خواهم donauschiff 葛城 1",
        id="invisible-characters",
    ),
    # Optional marks, and joiners that change a shape only
    pytest.param(
        "ज़मीन जमीन क्\u200dषा हँसी हंसी গৎ തൻ",
        "जमीन जमीन क्षा हंसी हंसी গত্ തന്",
        id="indic-optional-marks",
    ),
    # Digits of all scripts, and Thai as it is typed
    pytest.param(
        "๑๒๓ १२३ ٣ เเม่ ไท\u200bย นํ้า",
        "123 123 3 แม่ ไท ทย น้ํา",
        id="digits-and-thai-spellings",
    ),
    pytest.param("😂 lol 🇪🇬", "lol", id="emoji"),
    pytest.param("a\0b", "a b", id="nul-separates"),
    pytest.param("!!! ... -- ''", "", id="punctuation-alone"),
    pytest.param("don't stop", "do n't stop", id="contraction"),
    pytest.param("rock-n-roll/pop", "rock n roll pop", id="hyphens-and-slash"),
    # The cut before an n does not end the word before it.
    pytest.param(
        "lh'mn't dn't's i'd've", "lh'm n't d n't s i d ve", id="nested-contractions"
    ),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_words(text: str, expected: str) -> None:
    assert words(text) == expected.split()


def test_words_of_the_shipped_vocabulary_are_read_as_they_are() -> None:
    path = SHIPPED / "mp_hcnn" / "words" / VOCABULARY
    listed = json.loads(path.read_text(encoding="utf-8"))["words"]
    plain_words = []
    for word in listed:
        if word.isalnum() and not reading.ELONGATION.search(word):
            plain_words.append(word)
    assert len(plain_words) > 40_000
    # A text is cut after 1,000 characters.
    chunks = []
    for start in range(0, len(plain_words), 50):
        chunks.append(plain_words[start : start + 50])
    assert [words(" ".join(chunk)) for chunk in chunks] == chunks


def test_stop_words_have_the_form_of_words() -> None:
    text = "I don't know what she's doing. They're the ones we'll see, aren't they?"
    content_words = [word for word in words(text) if word not in STOP_WORDS]
    assert content_words == ["know", "ones", "see"]


@pytest.mark.parametrize(
    ("stanford", "raw"),
    [
        ("`` bbc -LRB- ap -RRB- '' cuts", '"bbc (ap)" cuts'),
        ("-LCB- a -RCB- -LSB- b -RSB-", "{a} [b]"),
        # A slash is escaped, a hashtag is taken apart.
        ("details \\/ on weds  ## cuts", "details/on weds #cuts"),
        ("rt @names : hello @url", "RT @bob: hello http://t.co/x"),
        ("17 5 % , bbc 's do n't it 's we 'll", "17 5%, bbc's don't it’s we’ll"),
    ],
)
def test_a_post_of_the_stanford_tokenizer_has_the_words_of_the_raw_post(
    stanford: str, raw: str
) -> None:
    assert words(stanford) == words(raw)


def test_a_long_text_is_cut() -> None:
    long_text = "ab " * 10_000
    assert words(long_text) == words(long_text + "end")
    assert len(words(long_text)) <= reading.MAX_CHARACTERS // 3 + 1
    long_word = "ab" * 10_000
    assert sum(map(len, words(long_word))) <= reading.MAX_CHARACTERS


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.text(max_size=80))
def test_words_of_any_text_are_lower_case_and_stable(raw: str) -> None:
    raw_words = words(raw)
    for word in raw_words:
        assert word
        assert word == word.lower()
        assert not set(word) & set(" @#/_\0")
    assert words(" ".join(raw_words)) == raw_words, (
        "reading the words again changes them"
    )


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        pytest.param("   ", "<url>", id="blank"),
        pytest.param("http://", "<url>", id="scheme-alone"),
        pytest.param("?a=b", "<url>", id="query-alone"),
        pytest.param("http://www.BBC.co.uk/News", "bbc.co.uk/news", id="www-and-case"),
        pytest.param("https://bbc.co.uk/", "bbc.co.uk", id="last-slash"),
        pytest.param("bbc.co.uk/a", "bbc.co.uk/a", id="no-scheme"),
        pytest.param(
            "http://bbc.co.uk/a?utm_source=twitter#top",
            "bbc.co.uk/a",
            id="query-and-fragment",
        ),
        pytest.param(
            "http://bbc.co.uk/world%20service",
            "bbc.co.uk/world service",
            id="escaped-blank",
        ),
        pytest.param(
            "ftp://wwwhost.org/http://x",
            "wwwhost.org/http://x",
            id="scheme-in-the-path",
        ),
    ],
)
def test_url_text(url: str, expected: str) -> None:
    assert url_text(url) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RT @bbc: World Service #bbc #Cuts!", ["bbc", "Cuts"]),
        ("as the collections have it ## bbc ## smile_safe", ["bbc", "smile_safe"]),
        # Numbers and other uses of the sign
        ("we are #1, item # 2, C# is no tag, nor is &#39; or a#b, ##  34m", []),
        ("#g20 #2011elections #café", ["g20", "2011elections", "café"]),
    ],
)
def test_hashtags(
    text: str,
    expected: list[str],
) -> None:
    assert hashtags(text) == expected


def trigrams(text: str) -> list[int]:
    return character_trigrams([text]).values.tolist()


def test_trigrams_cross_spaces_but_not_texts() -> None:
    lists = character_trigrams(["bbc", "a b", ""])
    # The trigrams of "#a b#", each in the middle of another text
    centres = [trigrams(text)[1] for text in ("#a ", "a b", " b#")]
    assert lists.values.tolist() == trigrams("bbc") + centres
    assert lists.lengths.tolist() == [3, 3, 0]
    assert len(character_trigrams([])) == 0


# Literals: with other identifiers every shipped checkpoint would read other trigrams.
def test_identifiers_are_those_of_trained_weights() -> None:
    assert trigrams("a") == [1 * 40]
    assert trigrams("ab") == [1 * 40 + 2, 1 * 1600 + 2 * 40]
    assert trigrams("z09")[1] == 26 * 1600 + 27 * 40 + 36
    assert trigrams(".-!")[1] == 37 * 1600 + 38 * 40 + 39


def test_ascii_texts_are_cut_as_by_the_pattern_of_tokens() -> None:
    texts = [f"a{chr(code)}b {chr(code)}c d{chr(code)}" for code in range(128)]
    # A text in another script is cut by the pattern, together with its neighbours.
    expected = reading.tokens_of(texts)
    expected += ["日本", reading.END]
    texts.append("日本")
    assert reading.tokens_of(texts) == expected


def test_apostrophes_within_words_stay() -> None:
    tokens = reading.tokens_of(["rock'n'roll 'tis the o''clock'"])
    assert tokens == ["rock'n'roll", "tis", "the", "o", "clock", reading.END]


def test_characters_that_the_look_ahead_skips_have_one_spelling() -> None:
    skipped = []
    for character in map(chr, range(0x110000)):
        if not spellings._HAS_SPELLINGS.search(character):
            skipped.append(character)
    text = "a".join(skipped)
    matching = [pattern for pattern, _ in spellings.SPELLINGS if pattern.search(text)]
    assert not matching


@example(
    [
        "Sooooo good, isn't it?\nRT @x: http://t.co/a",
        "",
        "a_b -LRB- c -RRB-",
        "it’s ŚĆ",
        "\n",
    ]
)
@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=6))
def test_a_lexicon_reads_each_text_as_if_it_were_alone(texts: list[str]) -> None:
    lexicon = Lexicon.from_texts(texts)
    word_trigrams = lexicon.trigrams()
    assert len(lexicon.texts) == len(texts)
    borders = pairwise(lexicon.texts.starts)
    for text, (start, end) in zip(texts, borders, strict=True):
        rows = lexicon.texts.values[start:end]
        assert [lexicon.words[row] for row in rows] == words(text)
        first = word_trigrams.starts[start]
        last = word_trigrams.starts[end]
        np.testing.assert_array_equal(
            word_trigrams.values[first:last],
            character_trigrams(words(text)).values,
        )


STEMMER = PorterStemmer()
SUFFIXES = """
9 É News ational tional izer entli ousli ization ation ator alism iveness fulness
ousness aliti iviti biliti fulli logi icate ative alize iciti ical ful ness ance ible
ement ment ous ied
"""
PAIRS = ["".join(letters) for letters in product(ascii_lowercase, repeat=2)]
ENDINGS = ["", *SUFFIXES.split(), *ascii_lowercase, *PAIRS]


@pytest.mark.parametrize("beginning", ["", "tr", "agree"])
def test_stems_are_those_of_nltk_for_all_endings(beginning: str) -> None:
    all_words = [beginning + ending for ending in ENDINGS]
    assert list(map(stem, all_words)) == list(map(STEMMER.stem, all_words))


def test_stems_are_those_of_nltk_for_its_exceptions() -> None:
    exceptions = list(STEMMER.pool)
    exceptions += [word.upper() for word in exceptions]
    assert list(map(stem, exceptions)) == list(map(STEMMER.stem, exceptions))


# Many of the 40,000 rows have the same slot of the hash table.
def columns_with_collisions() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    values = random.integers(0, 2**40, 60)
    return [
        np.repeat(np.arange(1000), 40),
        values[random.integers(0, 60, 40_000)],
    ]


def test_rows_that_share_a_slot_are_distinguished() -> None:
    columns = columns_with_collisions()
    rows = np.stack(columns, axis=1)
    first, kinds = distinct(columns)
    np.testing.assert_array_equal(
        rows[first][kinds],
        rows,
    )
    assert len(first) == len(np.unique(rows, axis=0))


def test_inexact_rows_are_right_but_may_be_repeated() -> None:
    columns = columns_with_collisions()
    rows = np.stack(columns, axis=1)
    first, kinds = distinct(columns, is_exact=False)
    np.testing.assert_array_equal(
        rows[first][kinds],
        rows,
    )
    count = len(np.unique(rows, axis=0))
    assert count <= len(first) < 2 * count


def random_texts() -> list[str]:
    random = np.random.default_rng(1)
    letters = list("ab cé\U0010ffff")
    lengths = random.integers(0, 20, 60)
    return ["".join(random.choice(letters, length).tolist()) for length in lengths]


def lists_of(ragged: Ragged) -> list[list[int]]:
    return [part.tolist() for part in np.split(ragged.values, ragged.starts[1:-1])]


@pytest.mark.parametrize("size", [3, 4])
def test_distinct_grams_count_the_sequences_of_each_text(size: int) -> None:
    texts = random_texts()
    sequences_of_texts = []
    for text in texts:
        starts = range(len(text) - size + 1)
        sequences_of_texts.append({text[start : start + size] for start in starts})
    grams = distinct_grams(code_points(texts), size)
    assert grams.lengths.tolist() == list(map(len, sequences_of_texts))
    all_sequences = set().union(*sequences_of_texts)
    assert len(set(grams.values.tolist())) == len(all_sequences)


@pytest.mark.parametrize("size", [3, 4])
def test_distinct_grams_do_not_depend_on_the_order_of_texts(size: int) -> None:
    texts = random_texts()
    grams = distinct_grams(code_points(texts), size)
    reversed_grams = distinct_grams(
        code_points(texts[::-1]),
        size,
    )
    assert lists_of(grams) == lists_of(reversed_grams)[::-1]
