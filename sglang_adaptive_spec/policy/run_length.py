"""How many plain decodes a zero-step round runs, one after the other.

Around its decode a round costs the CPU a fixed time, in which a small model leaves the GPU idle. A
run of k decodes pays it once. It is weighed by what it takes per token, catch-ups included, and by
what is lost: a request that ends within a run, and in the run launched behind it, decodes for
nothing. Times are kept as shares of what a round with one decode took at start-up: runs of two
lengths are timed at other contexts and other sizes of a class. The choice depends only on what
all ranks are told.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from math import hypot, sqrt
from statistics import fmean, median
from typing import Any, NamedTuple

from sglang_adaptive_spec.policy.per_token import PerToken
from sglang_adaptive_spec.policy.settings import DEFAULTS, RunLengthSettings
from sglang_adaptive_spec.size_classes import size_class, size_range
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Plan, RoundTime

LENGTHS = (1, 2, 4, 8)
NOTHING_BETWEEN = (0.0,) * len(LENGTHS)
MOST_WATCHED = 8  # requests of a batch whose runs are cut short; of more, ends are too frequent
NUM_NEWEST = 8  # rounds whose lengths say what the next ones will run


class Known(NamedTuple):
    """What a decode takes in runs of one length, as a share of the seeded, and its stderr."""

    share: float
    stderr: float


def of_one_decode(round_time: RoundTime, plain_extra_ms: Callable[[int, int], float]) -> RoundTime:
    """Returns a run's time as that of a round with one decode, its share of catch-ups apart."""
    num_decodes = round_time.plan.num_decodes
    if num_decodes == 1:
        return round_time
    extra_ms = plain_extra_ms(round_time.batch_size, round_time.context_tokens)
    ms = round_time.ms / num_decodes - extra_ms
    return round_time._replace(plan=Plan(PLAIN_TIER), ms=ms)


class RunLengths:
    """Knows what runs take and chooses their length, by size class."""

    def __init__(
        self, settings: RunLengthSettings = DEFAULTS.run_length, are_cut: bool = False
    ) -> None:
        """Takes what the choice was tuned with, and whether runs are cut short at an end."""
        self._settings = settings
        self._most_watched = MOST_WATCHED if are_cut else 0
        self._shares: dict[tuple[int, int], deque[float]] = {}  # by size class and length
        self._seeded_ms: dict[int, float] = {}  # newest, by size class
        self._known: dict[tuple[int, int], Known] = {}  # of those timed often enough, when asked
        self._num_timed: dict[int, int] = {}  # by size class, since the last retry
        self._ends = PerToken(settings.end_memory)  # of requests
        # Newest lengths by size class: served, or what would have been while drafts were.
        self._newest: dict[int, deque[int]] = {}
        self._was_plain = False  # the newest round observed

    def choose(
        self,
        batch: DecodeBatch,
        seeded_ms: float,
        expected_ms: float,
        is_look: bool = False,
        between_ms: Sequence[float] = NOTHING_BETWEEN,
    ) -> int:
        """Returns the decodes of a request in the round to come, at most ``batch.most_decodes``.

        Args:
            batch: That is about to launch.
            seeded_ms: Of a round with one decode, at start-up.
            expected_ms: Of such a round now, for lengths that were not timed yet.
            is_look: Whether the round belongs to a look at zero steps. It is to show what they
                give in force, and single decodes may take far longer than runs.
            between_ms: What prefills take before the next decode, by length.
        """
        sizes = size_class(batch.size)

        def is_short(length: int) -> bool:
            ms = self._decode_ms(sizes, length, seeded_ms)
            run_ms = length * (expected_ms if ms is None else ms)
            return length == 1 or run_ms <= self._settings.max_run_ms

        most = batch.most_decodes
        fitting = [length for length in LENGTHS if length <= most and is_short(length)]
        unknown = [length for length in fitting if self._known_of(sizes, length) is None]
        # The longest first: a look sees at once what zero steps can give, and tries no other.
        if unknown and (unknown[-1] == fitting[-1] or not is_look):
            return unknown[-1]
        known = [length for length in fitting if length not in unknown]
        best, least = known[0], self._settings.min_gain
        for length in known[1:]:
            gain, doubt = self._gain(batch.size, length, best, seeded_ms, between_ms)
            if gain - doubt >= least:
                best = length
            elif gain + doubt >= least and self._may_be_timed(sizes, length):
                return length
        return best

    def observe(self, plan: Plan, batch_size: int) -> None:
        """Takes a finished round; the first zero-step one of a stay always runs one decode."""
        is_plain = plan.tier == PLAIN_TIER
        if is_plain and self._was_plain:
            self._note(batch_size, plan.num_decodes)
        self._was_plain = is_plain

    def expect(
        self,
        batch: DecodeBatch,
        seeded_ms: float,
        expected_ms: float,
        between_ms: Sequence[float] = NOTHING_BETWEEN,
    ) -> None:
        """Takes a batch that drafts: what would a zero-step round of a stay run now?

        The arguments are those of `choose`.
        """
        in_stay = batch._replace(most_decodes=batch.most_in_stay)
        length = self.choose(in_stay, seeded_ms, expected_ms, between_ms=between_ms)
        self._note(batch.size, length)

    def mean_length(self, batch_size: int) -> float:
        """Returns the decodes of a zero-step round: single ones come between runs."""
        newest = self._newest.get(size_class(batch_size))
        return sum(newest) / len(newest) if newest else 1.0

    def alone(self, batch_size: int) -> float:
        """Returns what a round of one decode takes, in decodes of the newest runs; 1 if unknown."""
        sizes = size_class(batch_size)
        of_runs = self._known_of(sizes, max(self._newest.get(sizes, LENGTHS[:1])))
        single = self._known_of(sizes, LENGTHS[0])
        return 1.0 if single is None or of_runs is None else single.share / of_runs.share

    def kept(self, batch_size: int, length: float) -> float:
        """Returns the share of decodes that are not lost to ends of requests."""
        lost = self._settings.lost_per_decode * (length - 1)
        if batch_size <= self._most_watched:
            lost = min(lost, self._settings.lost_if_cut)
        return 1 - min(lost * self._ends.rate, 0.9)

    def learn(self, round_time: RoundTime, seeded_ms: float) -> None:
        """Takes what a zero-step round took, and what one with one decode took at start-up."""
        sizes, length = size_class(round_time.batch_size), round_time.plan.num_decodes
        if length not in LENGTHS:  # cut short
            return
        shares = self._shares.setdefault((sizes, length), deque(maxlen=self._settings.window))
        shares.append(round_time.ms / length / seeded_ms)
        self._seeded_ms[sizes] = seeded_ms
        self._known.pop((sizes, length), None)
        num_timed = self._num_timed[sizes] = self._num_timed.get(sizes, 0) + 1
        if num_timed >= self._settings.retry_rounds:
            self._num_timed[sizes] = 0
            for each in LENGTHS:
                self._shares.pop((sizes, each), None)
                self._known.pop((sizes, each), None)

    def count_tokens(self, num_tokens: int) -> None:
        """Counts the tokens of a finished round."""
        self._ends.count_tokens(num_tokens)

    def count_ends(self, before: Sequence[Hashable], after: Sequence[Hashable]) -> None:
        """Counts the requests that are not in the batch any more."""
        self._ends.count(len(set(before).difference(after)))

    def describe(self) -> dict[str, Any]:
        """Returns ms per decode by least batch size and length, for /server_info."""
        known: dict[str, dict[str, float]] = {}
        for sizes, length in sorted(self._shares):
            each = self._known_of(sizes, length)
            if each is not None:
                ms = round(each.share * self._seeded_ms[sizes], 4)
                known.setdefault(size_range(sizes), {})[str(length)] = ms
        return {"ms_per_decode": known, "ends_per_token": round(self._ends.rate, 6)}

    def _decode_ms(self, sizes: int, length: int, seeded_ms: float) -> float | None:
        """Returns ms per decode, as known of this length, else of another; None of neither."""
        for each in (length, *LENGTHS):
            known = self._known_of(sizes, each)
            if known is not None:
                return known.share * seeded_ms
        return None

    def _known_of(self, sizes: int, length: int) -> Known | None:
        """Returns what runs of a length take, worked out once after the newest was timed."""
        known, shares = self._known.get((sizes, length)), self._shares.get((sizes, length), ())
        if known is None and len(shares) >= self._settings.known_rounds:
            most = self._settings.outlier * median(shares)
            usual = [each for each in shares if each <= most]  # half of them at least
            middle, share = fmean(usual), fmean([min(each, most) for each in shares])
            spread2 = sum((each - middle) ** 2 for each in usual) / (len(usual) - 1)
            known = self._known[sizes, length] = Known(share, sqrt(spread2 / len(usual)))
        return known

    def _may_be_timed(self, sizes: int, length: int) -> bool:
        """Returns whether more times of a length would tell more."""
        return len(self._shares[sizes, length]) < self._settings.window

    def _gain(
        self,
        batch_size: int,
        longer: int,
        shorter: int,
        seeded_ms: float,
        between_ms: Sequence[float],
    ) -> tuple[float, float]:
        """Returns the share of a token's time that longer runs save, and how far it is in doubt.

        A length that wins by noise would only let tokens come in larger lumps.
        """
        sizes = size_class(batch_size)
        mine, others = self._known_of(sizes, longer), self._known_of(sizes, shorter)
        assert mine is not None, "only known lengths are compared"
        assert others is not None, "only known lengths are compared"
        mine_ms = mine.share * seeded_ms + between_ms[LENGTHS.index(longer)]
        others_ms = others.share * seeded_ms + between_ms[LENGTHS.index(shorter)]
        kept = self.kept(batch_size, shorter) / self.kept(batch_size, longer)
        ratio = mine_ms / others_ms * kept
        noise = seeded_ms * hypot(mine.stderr / mine_ms, others.stderr / others_ms)
        return 1 - ratio, self._settings.doubt_z * noise * ratio

    def _note(self, batch_size: int, length: int) -> None:
        sizes = size_class(batch_size)
        self._newest.setdefault(sizes, deque(maxlen=NUM_NEWEST)).append(length)
