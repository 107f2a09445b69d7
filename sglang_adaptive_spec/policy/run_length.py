"""How many plain decodes a zero-step round runs, one after the other.

Around its decode a round costs the CPU a fixed time, in which a small model leaves the GPU idle. A
run of k decodes pays it once. It is weighed by what it takes per token, catch-ups included, and by
what is lost: a request that ends within a run, and in the run launched behind it, decodes for
nothing. What was told decides, so ranks that are told alike run alike.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from statistics import median
from typing import Any

from sglang_adaptive_spec.tiers import DecodeBatch, RoundTime

LENGTHS = (1, 2, 4, 8)
MIN_GAIN = 0.02  # that a longer run must bring
MAX_RUN_MS = 20.0  # tokens of a stream come no further apart, and a new request waits no longer
KNOWN_ROUNDS = 4  # timed, before a length is believed; a choice
WINDOW = 16  # rounds of a length
# Timed rounds of an octave until all its lengths are tried anew.
RETRY_ROUNDS = 1024
# Tokens of requests after which what is known of their ends counts half.
END_MEMORY = 8192
# Decodes lost by a request that ends in a run of k, beyond those in runs of one: half a run, and
# the whole one launched behind it under the overlap schedule.
LOST_PER_DECODE = 1.5
OUTLIER = 2.0  # times the median: counts as that


class RunLengths:
    """Knows what runs take and chooses their length, by batch size in octaves."""

    def __init__(self) -> None:
        self._times_ms: dict[tuple[int, int], deque[float]] = {}  # per decode, by octave and length
        self._ms: dict[tuple[int, int], float] = {}  # what is believed of those known by now
        self._num_timed: dict[int, int] = {}  # by octave, since the last retry
        self._tokens = 0.0  # of requests, remembered
        self._ends = 0.0  # requests that left within them

    def choose(self, batch: DecodeBatch, expected_ms: float) -> int:
        """Returns the decodes of a request in the round to come, at most ``batch.most_decodes``.

        Args:
            batch: That is about to launch.
            expected_ms: Of a round with one decode, for lengths that were not timed yet.
        """
        octave = batch.size.bit_length()
        fitting = [
            length
            for length in LENGTHS
            if length <= batch.most_decodes
            and (length == 1 or length * self._bound_ms(octave, length, expected_ms) <= MAX_RUN_MS)
        ]
        # The longest first: a look at zero steps sees at once what they can give.
        for length in reversed(fitting):
            if (octave, length) not in self._ms:
                return length
        best = fitting[0]
        for length in fitting[1:]:
            gain = 1 - self._per_token(octave, length) / self._per_token(octave, best)
            if gain >= MIN_GAIN:
                best = length
        return best

    def learn(self, round_time: RoundTime) -> None:
        """Takes what a zero-step round took."""
        octave, length = round_time.batch_size.bit_length(), round_time.num_decodes
        times = self._times_ms.setdefault((octave, length), deque(maxlen=WINDOW))
        times.append(round_time.ms / length)
        if len(times) >= KNOWN_ROUNDS:
            most = OUTLIER * median(times)
            self._ms[octave, length] = sum(min(ms, most) for ms in times) / len(times)
        num_timed = self._num_timed[octave] = self._num_timed.get(octave, 0) + 1
        if num_timed >= RETRY_ROUNDS:
            self._num_timed[octave] = 0
            for each in LENGTHS:
                self._times_ms.pop((octave, each), None)
                self._ms.pop((octave, each), None)

    def saw(self, num_tokens: int) -> None:
        """Counts the tokens of a finished round."""
        self._tokens += num_tokens
        if self._tokens > END_MEMORY:
            self._tokens, self._ends = self._tokens / 2, self._ends / 2

    def saw_change(self, before: Sequence[Hashable], after: Sequence[Hashable]) -> None:
        """Counts the requests that are not in the batch any more."""
        self._ends += len(set(before).difference(after))

    def describe(self) -> dict[str, Any]:
        """Returns ms per decode by least batch size and length, for /server_info."""
        known: dict[str, dict[str, float]] = {}
        for (octave, length), ms in sorted(self._ms.items()):
            known.setdefault(str(2 ** (octave - 1)), {})[str(length)] = round(ms, 4)
        return {"ms_per_decode": known, "ends_per_token": round(self._end_share, 6)}

    @property
    def _end_share(self) -> float:
        return self._ends / self._tokens if self._tokens else 0.0

    def _bound_ms(self, octave: int, length: int, expected_ms: float) -> float:
        """Returns ms per decode, as known of this length, of another, or as expected."""
        known = (
            self._ms[octave, each] for each in (length, *LENGTHS) if (octave, each) in self._ms
        )
        return next(known, expected_ms)

    def _per_token(self, octave: int, length: int) -> float:
        lost = min(LOST_PER_DECODE * (length - 1) * self._end_share, 0.9)
        return self._ms[octave, length] / (1 - lost)
