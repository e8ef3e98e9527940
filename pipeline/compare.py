"""Compare the served model with its challenger by users' clicks.

  python -m pipeline.compare log

The log is that of pipeline.serve --log DIR --challenger MODEL. A search is a win of the challenger
if more of its posts were clicked than of the served model's, a loss if fewer. Ties say nothing. The
test may be looked at any time: of challengers that are no better, a share of 1 - --level at most is
ever called better.

p is the share of wins among wins and losses. The evidence against "p ≤ p0" is the likelihood of the
searches under a mixture of all q > p0, divided by that under p0. Where p ≤ p0 this is a
supermartingale, which ever reaches 1/α with probability α at most (Ville's inequality). The p0 that
are not rejected are a confidence sequence. Howard, Ramdas, McAuliffe & Sekhon, "Time-uniform,
nonparametric, nonasymptotic confidence sequences" (Annals of Statistics, 2021), proposition 7.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.command.errors import DataError, UsageError
from pipeline.command.main import run
from pipeline.command.options import argument, fraction, option

if TYPE_CHECKING:
    from pipeline.collections.clicks import Search

PRIOR = 30.0
"""a of the mixture Beta(a, a): rankers that users can tell apart win 50 to 65 % of the searches."""


@dataclass(frozen=True)
class Options:
    """The log, and the test."""

    log: Path = argument("folder of the log", parse=Path)
    level: float = option("confidence of the test", default=0.95, parse=fraction)


def main(options: Options) -> None:
    """Report."""
    if not 0.5 <= options.level < 1:
        raise UsageError(f"--level: found {options.level:g}, expected from 0.5 to below 1")
    from pipeline.collections.clicks import LogReader

    log = LogReader(options.log)
    state = read_comparison(log)
    if log.notes:
        print("\n".join(log.notes), file=sys.stderr)
    report(state, options.level)


class Comparison(NamedTuple):
    """Wins, losses and ties of the challenger in clicked searches, of all interleaved ones."""

    models: tuple[str, str]  # Versions: the served model's, the challenger's
    searches: int
    wins: int
    losses: int
    ties: int

    def interval(self, level: float) -> tuple[float, float]:
        """Limits of p, each of which is wrong at any time with the probability 1 - level."""
        lower = lower_limit(self.wins, self.losses, level)
        return lower, 1 - lower_limit(self.losses, self.wins, level)


def evidence(wins: float, losses: float, p0: float = 0.5) -> float:
    """The logarithm of the evidence against "p ≤ p0", for 0 < p0 < 1."""
    from scipy.special import betaln
    from scipy.stats import beta

    ratio = betaln(PRIOR + wins, PRIOR + losses) - betaln(PRIOR, PRIOR)
    tails = beta.logsf(p0, PRIOR + wins, PRIOR + losses) - beta.logsf(p0, PRIOR, PRIOR)
    return float(ratio + tails - wins * math.log(p0) - losses * math.log1p(-p0))


def lower_limit(wins: float, losses: float, level: float) -> float:
    """The smallest p0 that is not rejected at a level, such as .95."""
    low, high = 1e-6, max(1e-6, wins / max(1.0, wins + losses))
    for _ in range(40):
        middle = (low + high) / 2
        is_rejected = evidence(wins, losses, middle) >= -math.log(1 - level)
        low, high = (middle, high) if is_rejected else (low, middle)
    return low


def read_comparison(log: Iterable[Search]) -> Comparison:
    """The comparison of the last two models in a log; raises DataError without any."""
    from pipeline.service.interleaving import CHALLENGER, CHAMPION

    last = (0.0, ("", ""))
    # Versions -> search_id -> sign of the challenger's lead in clicks on each clicked page
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    for _, record, shown, clicked in log:
        if teams := record.get("teams"):
            models = str(record.get("version")), str(record.get("challenger"))
            last = max(last, (record["time"], models))
            signs = found.setdefault(models, {}).setdefault(record["search_id"], [])
            if clicked:
                of = [team for doc_id, team in zip(shown, teams, strict=True) if doc_id in clicked]
                lead = of.count(CHALLENGER) - of.count(CHAMPION)
                signs.append((lead > 0) - (lead < 0))
    if not found:
        raise DataError("found no interleaved search, expected some by serve --challenger MODEL")
    searches = [*found[last[1]].values()]
    leads = [sum(signs) for signs in searches if signs]
    wins, losses = (sum(lead * sign > 0 for lead in leads) for sign in (1, -1))
    return Comparison(last[1], len(searches), wins, losses, len(leads) - wins - losses)


def report(state: Comparison, level: float) -> None:
    """Print outcomes, the test, and what it needs."""
    from pipeline.command.runtime import print_table

    print(f"champion {state.models[0][:12]}, challenger {state.models[1][:12]}")
    print_table(Comparison._fields[1:], [[f"{count:,}" for count in state[1:]]], left=())
    low, high = state.interval(level)
    against = math.exp(min(700, evidence(state.wins, state.losses)))
    print(
        f"share of wins {state.wins / max(1, state.wins + state.losses):.3f}, from {low:.3f} to "
        f"{high:.3f} (each limit at the level {level:g}, at any time)\n"
        f"evidence that the challenger is better: {against:.3g}, of {1 / (1 - level):.3g} needed"
    )
    is_better = against >= 1 / (1 - level)
    print("the challenger is better" if is_better else "not known to be better (yet)")


if __name__ == "__main__":
    run("compare")
