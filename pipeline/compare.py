"""Compare the served model with its challenger by the clicks of users.

  python -m pipeline.compare log

The log is written by pipeline.serve --log DIR --challenger MODEL. The challenger wins a
search if more of its posts were clicked than of the served model's, and loses it if
fewer were. Ties do not count. If a client repeats a search for the same text, its
searches have one vote together. The false-positive rate is at most 5 %, however often
you look at the result.

The evidence is a ratio of likelihoods. It compares the wins and losses under a mixture
of all shares of wins above 1/2 with those under the share 1/2. If the challenger is not
better, this ratio is a supermartingale: the probability that it ever reaches 20 is at
most 1/20. See proposition 7 of Howard, Ramdas, McAuliffe & Sekhon, "Time-uniform,
nonparametric, nonasymptotic confidence sequences" (Annals of Statistics, 2021).
"""

import math
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import argument
from tweetrerank.pipeline.text import print_table, say

# Parameter a of the prior Beta(a, a) of the share of wins. It fits the shares that
# occur: if users can distinguish two rankers, the better one wins 50 to 65 % of the
# searches.
PRIOR = 30.0
# The evidence from which on the challenger counts as better
NEEDED = 20
OUTCOMES = ("searches", "repeated", "without a click", "wins", "losses", "ties")

CREATE = """CREATE TABLE pages
(time, champion, challenger, search, voter, lead)"""
INSERT = "INSERT INTO pages VALUES (?, ?, ?, ?, ?, ?)"
LATEST = "SELECT champion, challenger FROM pages ORDER BY time DESC LIMIT 1"
LEADS = """SELECT
    count(*), sum(n), sum(lead IS NULL), sum(lead > 0), sum(lead < 0), sum(lead = 0)
FROM (SELECT count(DISTINCT search) AS n, sum(lead) AS lead FROM pages
      WHERE champion = ? AND challenger = ? GROUP BY voter)"""


@dataclass(frozen=True)
class Options:
    """The log to read."""

    log: Path = argument("folder of the log", parse=Path)


def main(options: Options) -> None:
    """Print the outcomes and the evidence for the latest pair of models.

    Raises DataError if the log has no interleaved search.
    """
    with closing(_tally(options.log)) as tally:
        models = tally.execute(LATEST).fetchone()
        if models is None:
            problem = "found no interleaved search, expected some by serve --challenger"
            raise DataError(f"{options.log}: {problem}")
        outcomes = tally.execute(LEADS, models).fetchone()
    champion, challenger = models
    voters, searches, silent, wins, losses, ties = outcomes
    print(f"champion {champion[:12]}, challenger {challenger[:12]}")
    counts = [searches, searches - voters, silent, wins, losses, ties]
    print_table(OUTCOMES, [[f"{count:,}" for count in counts]], left=())
    ratio = math.exp(min(700, evidence(wins, losses)))
    print(f"evidence that the challenger is better: {ratio:.3g}, of {NEEDED} needed")
    if ratio >= NEEDED:
        print("the challenger is better")
    else:
        print("not known to be better (yet)")


def _tally(folder: Path) -> sqlite3.Connection:
    """Return a database with a row for each interleaved page of a log.

    The database is a temporary file, because a log may be larger than memory. Notes on
    unreadable lines are printed on stderr.
    """
    from tweetrerank.pipeline.collections.click_log import read_searches

    notes: list[str] = []
    tally = sqlite3.connect("")
    tally.execute(CREATE)
    for page in read_searches(folder, notes):
        if page.get("challenger"):
            tally.execute(INSERT, _row(page))
    for note in notes:
        say(note)
    return tally


def _row(page: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of a page for the table ``pages``.

    The lead is 1 if the challenger won, 0 if it drew, and -1 if it lost. It is None if
    nothing was clicked.
    """
    from tweetrerank.pipeline.collections.click_log import CHALLENGER, CHAMPION

    posts = zip(page["shown"], page["teams"], strict=True)
    teams = [team for doc_id, team in posts if doc_id in page["clicked"]]
    clicks = teams.count(CHALLENGER) - teams.count(CHAMPION)
    search = f"{page.get('query_id')}"
    return (
        page["time"],
        f"{page.get('version')}",
        f"{page.get('challenger')}",
        search,
        f"{page.get('voter') or search}",
        (clicks > 0) - (clicks < 0) if teams else None,
    )


def evidence(wins: float, losses: float) -> float:
    """Return the natural logarithm of the evidence that the share of wins is above 1/2.

    The result is minus infinity if the evidence is too small for a float.
    """
    from scipy.special import betainc, betaln

    ratio = betaln(PRIOR + wins, PRIOR + losses) - betaln(PRIOR, PRIOR)
    # Probability of a share above 1/2 under Beta(a + wins, a + losses)
    tail = betainc(PRIOR + losses, PRIOR + wins, 0.5)
    if not tail:
        return -math.inf
    return float(ratio + math.log(tail) + (1 + wins + losses) * math.log(2))


if __name__ == "__main__":
    run("compare")
