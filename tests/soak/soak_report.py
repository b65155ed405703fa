"""Lines and the table of a soak, and what every soak must have shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from soak_jobs import STAGES
from soak_run import Round
from soak_servers import Setup

MOST_TIES = 0.02
"""Share of the answers that may differ from the reference where its margin is noise."""

MIB = 1 << 20


@dataclass
class Visit:
    """The rounds on one server."""

    name: str
    rounds: list[Round] = field(default_factory=list)

    def total(self, name: str) -> int:
        """Of one of the server's counters."""
        return sum(each.counters[name] for each in self.rounds)

    @property
    def requests(self) -> int:
        return sum(each.requests for each in self.rounds)

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.rounds)

    @property
    def ties(self) -> list[float]:
        return [margin for each in self.rounds for margin in each.ties]

    @property
    def aborts(self) -> Counter[str]:
        return sum((each.aborts for each in self.rounds), Counter())

    @property
    def wrong(self) -> list[str]:
        return [line for each in self.rounds for line in each.wrong]

    @property
    def hit_rate(self) -> float:
        return self.total("hit_tokens") / max(1, self.total("prompt_tokens"))

    @property
    def not_taken(self) -> int:
        return self.total("skipped_checkpoints") + self.total("declined_checkpoints")

    def pressure(self, setup: Setup) -> dict[str, int]:
        """What must have happened, or the soak has shown nothing."""
        return {
            "evicted states": self.total("evicted_states"),
            "checkpoints skipped or declined": self.not_taken,
            **({"waits for slots": self.total("slot_waits")} if setup.waits else {}),
            "refused requests": sum(each.refused for each in self.rounds),
            **({"retractions": self.total("retractions")} if setup.retracts else {}),
            **{f"aborts while {stage}": self.aborts[stage] for stage in STAGES},
        }

    def check_answers(self) -> None:
        assert not self.wrong, "\n".join(self.wrong)
        finished = sum(each.finished for each in self.rounds)
        assert len(self.ties) <= MOST_TIES * finished, (
            f"{len(self.ties)} of {finished} answers differ within the noise: {self.ties}"
        )

    def check_pressure(self, setup: Setup) -> None:
        missing = [name for name, count in self.pressure(setup).items() if not count]
        assert not missing, f"{self.name}: none of these happened: {missing}"

    def growth(self) -> float | None:
        """Slope of the scheduler's resident memory, in MiB per 1,000 requests.

        By least squares, without the first third of the requests; None of fewer than four
        rounds.
        """
        done, points = 0, []
        for each in self.rounds:
            done += each.requests
            points.append((done / 1000, each.rss_bytes / MIB))
        points = [point for point in points if point[0] > done / 3000]
        if len(points) < 4:
            return None
        mean_x = sum(x for x, _ in points) / len(points)
        mean_y = sum(y for _, y in points) / len(points)
        spread = sum((x - mean_x) ** 2 for x, _ in points)
        return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def line(name: str, result: Round) -> str:
    """One round, as it is printed when it ends."""
    counted, aborts = result.counters, result.aborts
    not_taken = counted["skipped_checkpoints"] + counted["declined_checkpoints"]
    return (
        f"{name} seed {result.seed}: {result.requests} requests, {result.tokens} tokens, "
        f"hit rate {result.hit_rate:.2f}, evicted {counted['evicted_states']} states and "
        f"{counted['evicted_leaves']} leaves, retractions {counted['retractions']} (with "
        f"preemptions of {result.retracted} answers), slot waits {counted['slot_waits']}, "
        f"checkpoints not taken {not_taken}, "
        f"aborts {'/'.join(str(aborts[stage]) for stage in STAGES)} ({'/'.join(STAGES)}), "
        f"within the noise {len(result.ties)}, wrong {len(result.wrong)}, log-probabilities "
        f"within {result.apart:.1e}, RSS {result.rss_bytes / MIB:.0f} MiB"
    )


_COLUMNS = (
    "server", "requests", "tokens", "hit rate", "evicted states", "retractions", "slot waits",
    "checkpoints not taken", "aborts queued / prefilling / decoding", "differences within noise",
    "wrong answers", "largest log-probability difference", "RSS, MiB", "MiB per 1,000 requests",
)  # fmt: skip


def table(visits: Sequence[Visit]) -> str:
    """All servers, in Markdown."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS)]
    for visit in visits:
        growth, aborts = visit.growth(), visit.aborts
        rows.append(
            (
                visit.name,
                f"{visit.requests:,}",
                f"{visit.tokens:,}",
                f"{visit.hit_rate:.0%}",
                f"{visit.total('evicted_states'):,}",
                f"{visit.total('retractions'):,}",
                f"{visit.total('slot_waits'):,}",
                f"{visit.not_taken:,}",
                " / ".join(str(aborts[stage]) for stage in STAGES),
                str(len(visit.ties)),
                str(len(visit.wrong)),
                f"{max(each.apart for each in visit.rounds):.0e}",
                f"{visit.rounds[0].rss_bytes / MIB:.0f} to {visit.rounds[-1].rss_bytes / MIB:.0f}",
                "-" if growth is None else f"{growth:.2f}",
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
