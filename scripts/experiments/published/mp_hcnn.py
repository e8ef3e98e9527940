"""What Rao et al. (AAAI 2019) compare and print: their Tables 2 to 5 and Figures 2 to 4."""

from experiments.published.system import Figures, System

YEARS = ("mb2011", "mb2012", "mb2013", "mb2014")

# Five folds: the model that is kept is then trained on every training topic.
_ALL_TOPICS = ("--folds", "5")


def _years(*figures: float) -> Figures:
    """MAP and P@30 of one year after the other, as the paper's tables have them."""
    return dict(zip(YEARS, zip(figures[::2], figures[1::2], strict=True), strict=True))


def _without(*settings: str) -> tuple[str, ...]:
    return (*_ALL_TOPICS, *(word for setting in settings for word in ("--set", setting)))


QL = System(
    "QL", "run:ql", (), _years(.3576, .4000, .2091, .3311, .2532, .4450, .3924, .6182)
)  # fmt: skip
RM3 = System(
    "RM3", "run:rm3", (), _years(.3824, .4211, .2342, .3452, .2766, .4733, .4480, .6339)
)  # fmt: skip
LAMBDAMART = System(
    "LambdaMART (all)", "lambdamart", (),
    _years(.3845, .4279, .2291, .3559, .2477, .4617, .3943, .6200),
)  # fmt: skip
NON_NEURAL = (
    QL, RM3, LAMBDAMART,
    System("LambdaMART (text)", "lambdamart", ("--configuration", "text"),
           _years(.3547, .4027, .2072, .3294, .2394, .4456, .3824, .6091)),
    System("LambdaMART (text+URL)", "lambdamart", ("--configuration", "text_url"),
           _years(.3816, .4272, .2317, .3667, .2489, .4506, .3974, .6206)),
    System("LambdaMART (text+hashtag)", "lambdamart", ("--configuration", "text_hashtag"),
           _years(.3473, .4020, .2039, .3175, .2447, .4533, .3815, .5939)),
)  # fmt: skip
NEURAL = (
    System("DSSM", "dssm", (), _years(.1742, .2340, .1087, .1791, .1434, .2772, .2566, .4261)),
    System("C-DSSM", "c_dssm", (), _years(.0887, .1122, .0803, .1525, .0892, .1717, .1884, .2752)),
    System("DUET", "duet", (), _years(.1533, .2109, .1325, .2356, .1380, .2528, .2680, .4091),
           interpolated=_years(.3576, .4000, .2243, .3644, .2779, .4878, .4219, .6467)),
    System("MatchPyramid", "match_pyramid", (),
           _years(.1967, .2259, .1334, .2390, .1378, .2561, .2722, .4491)),
    System("DRMM", "drmm", (), _years(.2635, .3095, .1777, .3169, .2102, .4061, .3440, .5424),
           interpolated=_years(.3477, .4034, .2213, .3537, .2639, .4772, .4042, .6139)),
    System("K-NRM", "knrm", (), _years(.2519, .3034, .1607, .2966, .1750, .3178, .3472, .5388),
           interpolated=_years(.3576, .4000, .2277, .3520, .2721, .4756, .4137, .6358)),
    System("Conv-KNRM", "knrm", ("--configuration", "conv")),
)  # fmt: skip
MP_HCNN = System(
    "MP-HCNN", "mp_hcnn", _ALL_TOPICS,
    _years(.3940, .4306, .2313, .3757, .2856, .5211, .4178, .6279),
    interpolated=_years(.4040, .4435, .2482, .3915, .2937, .5250, .4403, .6455),
)  # fmt: skip

ABLATIONS = (
    System("- mean pooling", "mp_hcnn", _without("mean_pooling=false"),
           _years(.3687, .4054, .2251, .3480, .2766, .5000, .3907, .5897)),
    System("- max pooling", "mp_hcnn", _without("max_pooling=false"),
           _years(.0982, .1320, .0767, .1243, .0920, .1706, .1934, .2176)),
    System("- IDF weighting", "mp_hcnn", _without("idf_weights=false"),
           _years(.3511, .3714, .2119, .3452, .2717, .4967, .3992, .6097)),
    System("- word module", "mp_hcnn", _without("use_words=false"),
           _years(.1651, .1293, .0762, .1119, .0987, .1517, .1849, .2048)),
    System("- URL char rep.", "mp_hcnn",
           _without("use_url_trigrams=false", "url_presence=false"),
           _years(.3594, .3707, .2131, .3333, .2797, .4989, .4037, .6085)),
    System("- doc char rep.", "mp_hcnn", _without("use_post_trigrams=false"),
           _years(.3603, .3721, .2188, .3537, .2757, .5122, .4012, .6103)),
    System("- char module", "mp_hcnn",
           _without("use_post_trigrams=false", "use_url_trigrams=false", "url_presence=false"),
           _years(.3528, .3709, .2087, .3271, .2718, .5011, .4050, .6091)),
)  # fmt: skip

DEPTHS = tuple(
    # Depth 2 is what the model has when nothing is said, so it is the same cell as above.
    System(f"depth {depth}", "mp_hcnn", _ALL_TOPICS if depth == 2 else _without(f"depth={depth}"))
    for depth in range(5)
)

STATISTICS = {
    "topics": (49, 60, 60, 55),
    "query-document pairs": (39780, 49879, 46192, 41579),
    "relevant documents": (1940, 4298, 3405, 6812),
    "unique words": (21649, 27470, 24546, 22099),
    "unique OOV words": (13067, 17190, 15724, 14331),
    "URLs": (20351, 25405, 23100, 20885),
    "hashtags": (6784, 8019, 7869, 7346),
}
"""Table 2, in the order of the years."""

EVIDENCE = {
    "exact word match": 100, "exact phrase match": 44, "partial paraphrase match": 59,
    "partial URL match": 29,
}  # fmt: skip
"""Table 5: percent of 100 posts."""

WINS = {"mb2011": (26, 13), "mb2012": (35, 19)}
"""Section 5.2: topics on which MP-HCNN is above and below QL."""
