"""English words that say how a sentence is built and not what it is about."""

_ARTICLES = "a an the"
_PRONOUNS = (
    "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his "
    "himself she her hers herself it its itself they them their theirs themselves one"
)
_DETERMINERS = (
    "this that these those such some any no each every either neither all both few more most "
    "other another own same"
)
_QUESTION_WORDS = "who whom whose which what when where why how"
_AUXILIARIES = (
    "am is are was were be been being have has had having do does did doing will would shall "
    "should can could may might must"
)
_PREPOSITIONS = (
    "about above after against among around as at before behind below between by down during for "
    "from in into of off on onto out over per since through to toward under until up upon with "
    "within without"
)
_CONJUNCTIONS = "and but or nor if because while although though than then so"
_ADVERBS = "again also here just not now only there too very once further"
# What is left of contractions once they are split.
_CONTRACTIONS = "s t d m ll re ve n't"

STOP_WORDS = frozenset(
    " ".join(
        (_ARTICLES, _PRONOUNS, _DETERMINERS, _QUESTION_WORDS, _AUXILIARIES, _PREPOSITIONS,
         _CONJUNCTIONS, _ADVERBS, _CONTRACTIONS)
    ).split()
)  # fmt: skip
"""As the words of :mod:`rerankers.text.words` are written: lower case, contractions split."""
