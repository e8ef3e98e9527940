"""Compare the served model with its challenger by users' clicks.

  python -m pipeline.compare log

The log is that of pipeline.serve --log DIR --challenger MODEL. A search is a win of the challenger
if more of its posts were clicked than of the served model's, a loss if fewer. Ties say nothing. The
test may be looked at any time: of challengers that are no better, one of twenty is ever called
better.

The evidence against a share of wins ≤ 1/2 is the likelihood of wins and losses under a mixture of
all greater shares, divided by that under 1/2: a supermartingale, which ever reaches 20 with
probability 1/20 at most. Howard, Ramdas, McAuliffe & Sekhon, "Time-uniform, nonparametric,
nonasymptotic confidence sequences" (Annals of Statistics, 2021), proposition 7.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.command.main import run
from pipeline.command.options import argument
from pipeline.errors import DataError

PRIOR = 30.0  # a of Beta(a, a): rankers that users can tell apart win 50 to 65 % of the searches
NEEDED = 20  # Evidence


@dataclass(frozen=True)
class Options:
    """The log."""

    log: Path = argument("folder of the log", parse=Path)


def main(options: Options) -> None:
    """Print outcomes, the test, and what it needs."""
    from pipeline.collections.clicks import read_searches
    from pipeline.text import print_table

    notes: list[str] = []
    (champion, challenger), counts = read_comparison(read_searches(options.log, notes))
    if notes:
        print("\n".join(notes), file=sys.stderr)
    print(f"champion {champion[:12]}, challenger {challenger[:12]}")
    print_table(tuple(counts), [[f"{count:,}" for count in counts.values()]], left=())
    found = math.exp(min(700, evidence(counts["wins"], counts["losses"])))
    print(f"evidence that the challenger is better: {found:.3g}, of {NEEDED} needed")
    print("the challenger is better" if found >= NEEDED else "not known to be better (yet)")


def evidence(wins: float, losses: float) -> float:
    """The logarithm of the evidence that the share of wins is above 1/2."""
    from scipy.special import betaln
    from scipy.stats import beta

    ratio = betaln(PRIOR + wins, PRIOR + losses) - betaln(PRIOR, PRIOR)
    tail = beta.logsf(0.5, PRIOR + wins, PRIOR + losses)
    return float(ratio + tail + (1 + wins + losses) * math.log(2))


def read_comparison(log: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str], dict[str, int]]:
    """Versions of the last two models in a log, and outcomes of their searches with a click.

    Raises DataError without any interleaved search.
    """
    from pipeline.collections.clicks import CHALLENGER, CHAMPION

    last = (0.0, ("", ""))
    # Versions -> search_id -> sign of the challenger's lead in clicks on each clicked page
    found = defaultdict[tuple[str, str], defaultdict[str, list[int]]](lambda: defaultdict(list))
    for search in log:
        if search.get("challenger"):
            models = str(search.get("version")), str(search["challenger"])
            last, signs = max(last, (search["time"], models)), found[models][search["search_id"]]
            posts = zip(search["shown"], search["teams"], strict=True)
            if clicks := [team for doc_id, team in posts if doc_id in search["clicked"]]:
                lead = clicks.count(CHALLENGER) - clicks.count(CHAMPION)
                signs.append((lead > 0) - (lead < 0))
    if not found:
        raise DataError("found no interleaved search, expected some by serve --challenger MODEL")
    leads = [sum(signs) for signs in found[last[1]].values() if signs]
    wins, losses = sum(lead > 0 for lead in leads), sum(lead < 0 for lead in leads)
    counts = {"searches": len(found[last[1]]), "wins": wins, "losses": losses}
    return last[1], counts | {"ties": len(leads) - wins - losses}


if __name__ == "__main__":
    run("compare")
