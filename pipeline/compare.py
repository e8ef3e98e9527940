"""Compare the served model with its challenger by users' clicks.

  python -m pipeline.compare log

The log is that of pipeline.serve --log DIR --challenger MODEL. A search is a win of the challenger
if more of its posts were clicked than of the served model's, a loss if fewer. Ties say nothing.
Repeated searches of a client for the same text have one vote. The test may be looked at any time:
of challengers that are no better, one of twenty is ever called better.

The evidence against a share of wins ≤ 1/2 is the likelihood of wins and losses under a mixture of
all greater shares, divided by that under 1/2: a supermartingale, which ever reaches 20 with
probability 1/20 at most. Howard, Ramdas, McAuliffe & Sekhon, "Time-uniform, nonparametric,
nonasymptotic confidence sequences" (Annals of Statistics, 2021), proposition 7.
"""

import math
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import argument

PRIOR = 30.0  # a of Beta(a, a): rankers that users can tell apart win 50 to 65 % of the searches
NEEDED = 20  # Evidence
OUTCOMES = ("searches", "repeated", "without a click", "wins", "losses", "ties")
LEADS = """SELECT count(*), sum(n), sum(lead IS NULL), sum(lead > 0), sum(lead < 0), sum(lead = 0)
FROM (SELECT count(DISTINCT search) AS n, sum(lead) AS lead FROM pages
      WHERE champion = ? AND challenger = ? GROUP BY voter)"""


@dataclass(frozen=True)
class Options:
    """The log."""

    log: Path = argument("folder of the log", parse=Path)


def main(options: Options) -> None:
    """Print outcomes, the test, and what it needs."""
    from tweetrerank.pipeline.collections.click_log import (
        CHALLENGER,
        CHAMPION,
        read_searches,
    )
    from tweetrerank.pipeline.text import print_table, say

    notes = list[str]()
    with closing(
        sqlite3.connect("")
    ) as tally:  # On the disk: logs may be larger than memory.
        tally.execute(
            "CREATE TABLE pages (time, champion, challenger, search, voter, lead)"
        )
        for page in read_searches(options.log, notes):
            if not page.get("challenger"):
                continue
            posts = zip(page["shown"], page["teams"], strict=True)
            teams = [team for doc_id, team in posts if doc_id in page["clicked"]]
            lead = teams.count(CHALLENGER) - teams.count(CHAMPION)
            sign = (lead > 0) - (lead < 0) if teams else None
            names = [
                f"{page.get(key)}" for key in ("version", "challenger", "query_id")
            ]
            row = page["time"], *names, f"{page.get('voter') or names[2]}", sign
            tally.execute("INSERT INTO pages VALUES (?, ?, ?, ?, ?, ?)", row)
        latest = "SELECT champion, challenger FROM pages ORDER BY time DESC LIMIT 1"
        for note in notes:
            say(note)
        if (models := tally.execute(latest).fetchone()) is None:
            raise DataError(
                f"{options.log}: found no interleaved search, expected some by serve --challenger"
            )
        voters, searches, silent, wins, losses, ties = tally.execute(
            LEADS, models
        ).fetchone()
    print(f"champion {models[0][:12]}, challenger {models[1][:12]}")
    counts = searches, searches - voters, silent, wins, losses, ties
    print_table(OUTCOMES, [[f"{count:,}" for count in counts]], left=())
    found = math.exp(min(700, evidence(wins, losses)))
    print(f"evidence that the challenger is better: {found:.3g}, of {NEEDED} needed")
    print(
        "the challenger is better"
        if found >= NEEDED
        else "not known to be better (yet)"
    )


def evidence(wins: float, losses: float) -> float:
    """The logarithm of the evidence that the share of wins is above 1/2."""
    from scipy.special import betainc, betaln

    ratio = betaln(PRIOR + wins, PRIOR + losses) - betaln(PRIOR, PRIOR)
    tail = betainc(
        PRIOR + losses, PRIOR + wins, 0.5
    )  # Of Beta(a + wins, a + losses), above 1/2
    return (
        float(ratio + math.log(tail) + (1 + wins + losses) * math.log(2))
        if tail
        else -math.inf
    )


if __name__ == "__main__":
    run("compare")
