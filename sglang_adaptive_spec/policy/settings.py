"""What the goodput policy was tuned with: every value with its unit and where it comes from.

A number is here if another value would make the policy decide otherwise and nothing else must agree
with it. These stay beside their code: numbers that other rooms share (rounds that the loop does not
time, results it collects, lengths of runs), limits of arithmetic (what keeps logits and ratios
finite), sizes of arrays, and what only bounds the CPU time of a round.

`build_policy` hands the groups to the classes that use them. The annotations bound what
`simulate --set` takes; whoever constructs a group is not checked.
"""

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
Least0 = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, lt=1)]
Factor = Annotated[float, Meta(ge=1)]
Count = Annotated[int, Meta(ge=1)]
Count0 = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class AcceptanceSettings:
    """What drafts are believed to be accepted, and how fast that is forgotten."""

    # Request-rounds, from the design: how little is remembered right after a change, and how much
    # at most. 1,000 leave a standard error of 0.01 to 0.016 on a hazard between 0.3 and 0.9.
    fast_memory: Positive = 32.0
    slow_memory: Positive = 1000.0
    # Hazard before any evidence; optimistic, so that the first rounds speculate and find out. It is
    # the per-position acceptance of a good EAGLE-3 draft on code (the benchmark matrix: 0.3 to
    # 0.95).
    prior_hazard: Share = 0.8
    # Request-rounds that the guess for a position counts as: that for the first one is only a
    # prior, a deeper one's is its neighbour's hazard, which it usually resembles.
    first_prior_rounds: Positive = 4.0
    next_prior_rounds: Positive = 8.0
    # Shifts of the logits (both signs) that the change test looks for: 0.5 is 0.7 -> 0.79, a drift
    # worth another depth; 1.5 is 0.7 -> 0.91, another kind of text, found in a third of the rounds.
    small_shift: Positive = 0.5
    large_shift: Positive = 1.5
    # Log-likelihood ratio of an alarm: false ones come once in about e^8 = 3,000 independent
    # stretches; tests/policy/test_acceptance.py bounds them on simulated steady rounds.
    change_threshold: Positive = 8.0
    # Logits by which neighbouring positions usually differ (0.5: 0.7 against 0.59): differences
    # that little evidence shows are shrunk by it before censored positions rely on them.
    gap_spread: Positive = 0.5
    # Rounds a request's own evidence lasts: the text of one request changes, too. 64 leave a
    # standard error of about 0.2 logits on an offset (h 0.7, two positions reached a round).
    request_memory_rounds: Positive = 64.0
    # Spread of the offsets in logits before it is known, and its bounds. 1.5: half the requests at
    # 0.3 and half at 0.9 lie 1.5 logits from their mean. The lower bound keeps k finite.
    prior_spread: Positive = 1.0
    prior_spread_weight: Positive = 8.0  # sums of v^2: what eight requests tell in some five rounds
    min_spread: Positive = 0.05
    max_spread: Positive = 2.0
    recentre_at: Positive = 0.05  # logits; smaller mean offsets are left where they are
    # Hazard of censored positions in the most favourable case worth a probe: the highest acceptance
    # of the benchmark matrix. Between chain and tree: so many standard errors of their difference
    # beyond its estimate.
    optimistic_hazard: Share = 0.95
    optimistic_z: Least0 = 2.0
    # Choices. What is remembered of how often a table has drafts: a probe of 16 rounds says two
    # fifths of what is known. Of new requests, and where acceptance has changed, the first few say
    # most.
    found_memory_rounds: Positive = 32.0
    found_fresh_rounds: Positive = 2.0


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """What a ladder with trees believes of their lifts. Variances in squared logits."""

    # Logits that a doubling of the candidates adds, before any evidence. Static trees of the
    # SmolLM2 pair on four kinds of text: 0.3 to 0.5 (docs/policy.md).
    lift_per_doubling: Least0 = 0.4
    # The text's variances, so that the memory is that of chains. They hold for position 1;
    # position i has 1 + text_gap * (i - 1) times as much and shares it with those before: one
    # without evidence follows them.
    text_prior: Positive = 1.5  # before any evidence: what 4 request-rounds at prior_hazard tell
    text_gap: Least0 = 0.2
    text_change: Least0 = 1.0  # of a shift that the change test found
    text_fresh: Least0 = 0.15  # of new requests: what fast_memory request-rounds tell at 0.7
    # Per request-round; the filter then remembers about slow_memory of them: sqrt(text_drift /
    # info) is 1 / (slow_memory * info) at 0.2, the information of a request-round at 0.7.
    text_drift: Least0 = 5e-6
    # Of a lift nobody has observed, half of it shared by all depths: a choice, ten times the
    # variance of the guess for SmolLM2's pair: others may lift by nothing or by twice as much.
    lift_prior: Positive = 0.4
    lift_drift: Least0 = 1e-7  # a lift is 0.1 logits unsure again after 100,000 others' rounds
    lift_change: Least0 = 0.01  # another text lifts a little otherwise: 0.3 to 0.5 of SmolLM2's


@dataclass(frozen=True, slots=True)
class CostSettings:
    """What round times are believed to be, and how fast served rounds correct them."""

    # How far the log of a seed lies off the line between its neighbours, one octave or step to
    # either side: the root mean square by size and the largest by steps over
    # simulate/h200-llama-8b.json.
    bend_per_octave2: Positive = 0.1
    bend_per_step2: Positive = 0.03
    # By size it may lie so far off however near the neighbours are: times leap from one captured
    # size to the next. Of five starts on H200s each predicts the others' seeds to 0.8 % so, and to
    # 3.3 % without it.
    leap: Least0 = 0.05
    # Share; beyond it and two standard errors of both, two seeds are out of order.
    order_margin: Least0 = 0.03
    # Extra time of one more step, as a share of the zero-step round, where only one tier is known.
    # 3 steps take 1.42 rounds of none at batch 1 (slice-h200.json, tokens_per_s of none over
    # static-3 times 3.5 accepted tokens); 2.7 at batch 100, so it flatters depth there.
    step_share: Least0 = 0.14
    # A choice: weight of a served round against a bucket nobody served, where order is restored.
    seen_weight: Least0 = 4.0
    # Logs. On an H200 with 8B shapes the tiers' served over seeded times spread by 0.05 about their
    # mean at a batch size, and the means by 0.05 about 1.05 (docs/decisions/round-times.md). Equal,
    # so that a tier seen alone lends half of its correction.
    own_spread: Positive = 0.05
    common_spread: Least0 = 0.05
    # Standard error of the location of one served round; it falls with their number. A stall (2 %
    # of rounds) is one round: 2 or 3 rounds are worth far more than one.
    round_spread: Positive = 0.1
    surprise_pairs: Positive = 2.0  # that no surprise counts as
    # Rounds of a tier at a bucket, before it speaks for drift, for surprise and for other sizes.
    settle_rounds: Count = 32
    # Choices: one outlier makes no tier look dearer by 3 %, five rounds that agree do. On an H200
    # one round of 1.8 times and two of 1.0 and 7.3 turned a table
    # (tests/policy/test_cost_tails.py).
    firm_rounds: Count = 5
    most_rise: Least0 = 0.025  # a log
    num_smaller: Count0 = 4  # a choice: a spell of five stalls outweighs no sixth round
    # Choices. The host's floor: a round is far beyond its seed by so much, a log (1.15 times), so
    # many tiers at sizes must be, and a size within this factor of another is near it.
    floor_beyond: Positive = 0.14
    floor_places: Count = 3
    floor_reach: Factor = 2.0
    # A choice, a factor: a size next to another is within it, such as 6 to 8 of 8.
    lending_reach: Factor = 1.34
    # The largest log of a correction: a factor of 2.5. Zero steps of a model as small as
    # SmolLM2-135M, seeded at 1.0 ms, take 2.3 ms.
    max_correction_log: Positive = 0.92
    slow_rate: Share = 1 / 32  # a choice: of a settled residual, learned per round
    max_evidence: Count = 256  # a choice: rounds a tier at a bucket is remembered for
    min_catch_ups: Count = 8  # a choice: served, before they outweigh the seed
    residual_window: Count = 64  # a choice: rounds of a tier
    min_noise_rounds: Count = 8  # a choice
    unseen_noise: Least0 = 0.05  # relative, before any round was observed: wide on purpose
    visit_change: Positive = 0.06  # of a log: no noise of two rounds, which is 0.02 on an H200
    recent_rounds: Count = 3  # that say what all tiers do before drift has followed
    drift_window: Count = 64  # rounds; its median turns after 33, 0.3 s at 10 ms a round
    min_drift_rounds: Count = 8  # ratios before drift leaves 1
    # Factors. Seeding ran alone, so little can be faster; neighbours slow down.
    least_drift: Share = 0.8
    most_drift: Factor = 5.0
    # A factor; less either way is 1: clocks and the host's pace, not alike for all rounds.
    small_drift: Factor = 1.15
    # Where the host bounds drafting rounds its pace changes by itself, within a second and by up to
    # half (cores-h200.json): choices, so that neither a visit nor all rounds of a spell are news.
    host_visit_change: Positive = 0.6  # of a log
    host_small_drift: Factor = 3.0
    # Standard errors that a tier may be faster than believed. At cost noise 0.3 five golden traces
    # serve alike with 1.5 and 2, and up to 0.012 less with 1 (simulate/, eight noise seeds).
    least_z: Least0 = 1.5
    wrong_seed: Factor = 2.0  # as wrong as the costs of another machine may be


@dataclass(frozen=True, slots=True)
class ChoiceSettings:
    """When a tier is left for another."""

    # Standard errors. 0.5 and 1.0 serve within 0.0005 of each other on the golden traces, 1.5 and
    # 2.0 up to 0.0013 less (geometric mean; simulate/): waiting for certainty costs more than a
    # tie.
    switch_z: Least0 = 1.0
    # Cost noise counts up to this share: less than what a cell may lose (0.03), so that a tier not
    # yet observed in service (costs.unseen_noise) is still tried.
    max_cost_noise: Least0 = 0.01


@dataclass(frozen=True, slots=True)
class CadenceSettings:
    """When to decide. Rounds, or requests of a batch."""

    # Rounds from one decision to the next while the batch stays the same. A change of the
    # acceptance needs that long to show anyhow; benchmarks/studies/overhead.py has what it costs.
    decision_rounds: Count = 4
    # Short rounds want more of them: ms of a decision on a slow CPU (real-text-h200.json.xz), and
    # the share of the time that decisions may take there (docs/decisions/cost-of-deciding.md).
    decision_ms: Positive = 2.0
    decision_share: Share = 0.05
    # A decision costs up to a tenth of a round: while they change nothing, each waits twice as long
    # as the last, up to this.
    max_decision_rounds: Count = 32
    # A decision is due when one request in so many has changed, but never for one alone. It takes
    # up to a third of a round where the CPU bounds rounds and no GPU time hides it
    # (real-text-h200.json.xz).
    redecide_share: Count = 8
    # A batch of none but new requests may be of another kind. At zero steps a larger one shows it
    # (one free look per request and catch-up); up to here that takes seconds, and drafting costs
    # little.
    fresh_look_batch: Count0 = 8
    # Choices: batches in which such looks are remembered, how many say anything, and every how many
    # are looked at while that has not paid.
    fresh_look_memory: Factor = 8.0
    min_fresh_looks: Count = 3
    fresh_look_distance: Count = 8
    # Choices: decodes from one look-up of a table to the next in a stay at zero steps, doubled up
    # to the second while they find nothing. A look-up takes about as long as one or two of them.
    ask_decodes: Count = 32
    max_ask_decodes: Count = 128
    # A choice: what asking before each round may lose, in tokens of a request: eight to
    # sixteen rounds in which nothing is found.
    ask_credit: Least0 = 4.0
    # Before the first decision about such a batch: as many rounds as so many request-rounds take.
    fresh_rounds: Count = 4
    fresh_evidence: Count = 32


@dataclass(frozen=True, slots=True)
class ProbingSettings:
    """When, how long and at what price tiers not in force are looked at."""

    share: Share = 0.01  # of all time: a choice; tests and benchmarks hold it
    # Credit that quiet time may gather: what 30 s earn, enough for the longest probe at most
    # batches. A dearer probe waits for a full bucket and is as short as that, or as the shortest.
    credit_limit_ms: Positive = 300.0
    rich_ms: Positive = 75.0  # left over, from which unlikely looks are made: what 7.5 s earn
    min_distance_rounds: Count = 32  # after a reset; one acceptance.fast_memory
    max_distance_rounds: Count = 8192  # a minute of 8 ms rounds: what no event announces is found
    max_open_distance_rounds: Count = 512  # where more of the same would settle what is left open
    reset_share: Share = 1 / 8  # of the batch: the back-off starts anew once so much may be new
    # Request-rounds that should reach the first censored position in one probe: 16 tell a hazard of
    # 0.3 from one of 0.7 with less than 3 % error.
    evidence: Count = 16
    max_rounds: Count = 16
    look_results: Count = 2  # a look at a round time wants two: one may be a stall
    min_look_distance_rounds: Count = 8  # doubled while looks tell nothing: no round was timed
    # After the tier in force changed: the rates that a look goes by may still be moving. On phases
    # of 0.5 s, 70 rounds, looks cost 0.001 of the oracle, and 0.003 without (mean of eight noise
    # seeds).
    settled_rounds: Count0 = 64
    # A round of a probe is booked at so much beyond its expected time at most, as a share: no seed
    # is as wrong, so the rest is a stall (costs.wrong_seed).
    most_beyond: Least0 = 1.0
    # Rounds until a probe's results must have come: one for the overlap schedule, one for a
    # prefill.
    patience_rounds: Count = 2
    # Rounds in which a probe's time may still come: ranks share theirs every 32 (loop/sharing.py).
    late_rounds: Count0 = 64


@dataclass(frozen=True, slots=True)
class RunLengthSettings:
    """How many decodes a zero-step round runs."""

    min_gain: Least0 = 0.02  # share that a longer run must bring, beyond its doubt
    doubt_z: Least0 = 2.0  # standard errors; a length in doubt is timed for a window, then left
    max_run_ms: Positive = 20.0  # tokens of a stream come no further apart, a request waits as long
    known_rounds: Annotated[int, Meta(ge=3)] = 4  # timed, before a length is weighed; a choice
    window: Count = 16  # rounds of a length
    retry_rounds: Count = 1024  # timed, of a size class until all its lengths are tried anew
    end_memory: Count = 8192  # tokens of requests after which what is known of ends counts half
    # Decodes lost by a request that ends in a run of k, beyond those in runs of one: half a run,
    # and the whole one launched behind it under the overlap schedule.
    lost_per_decode: Least0 = 1.5
    # Decodes lost at most where a run is cut short at an end (host/serving/run_ends.py): those in
    # flight, and one launched behind them. A round of one decode would have lost one.
    lost_if_cut: Least0 = 2.0
    outlier: Factor = 2.0  # times the median: counts as that


@dataclass(frozen=True, slots=True)
class InterruptionSettings:
    """What is learned of prefills between rounds. Choices."""

    window: Count = 32  # interrupted periods of a size class
    min_periods: Count = 8  # before they say anything
    outlier: Factor = 2.0  # times the median: a long prompt, or a stall
    # Weight of a line through the origin, as a variance of the requests let in at once, in squares
    # of their mean: where they are always as many, nothing says that a part is fixed.
    slope_weight: Positive = 0.05
    doubt_z: Least0 = 2.0  # standard errors of the mean: less than that is none
    memory_tokens: Count = 8192  # after which what is known of requests let in counts half


@dataclass(frozen=True, slots=True)
class PackingSettings:
    """When rounds verify another number of drafts per request. Choices."""

    min_gain: Least0 = 0.01  # over the best tier, to begin; half of it to go on
    window: Count = 16  # timed rounds of a width that tell its time
    prior_rounds: Count = 4  # as many count for what all packed rounds say
    retry_rounds: Count = 512  # without one, until a size class forgets what they took
    max_retry_rounds: Count = 8192  # twice as many each time, up to here
    stay_rounds: Count = 64  # in a row, after which it counts as tried and kept
    hope: Least0 = 0.04  # share by which packed rounds of an unknown depth may be faster


@dataclass(frozen=True, slots=True)
class ConfidenceSettings:
    """What the draft's confidence says. Choices."""

    memory: Factor = 8192.0  # request-rounds
    prior_rounds: Factor = 64.0  # as many count for a = 0 and w = 1
    most_slope: Factor = 2.0
    # Newest rounds whose c tell what a packed round is expected to give: so many requests in all,
    # and so many rounds at most.
    sampled_requests: Count = 256
    samples: Count = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """All groups."""

    acceptance: AcceptanceSettings = field(default_factory=AcceptanceSettings)
    trees: TreeSettings = field(default_factory=TreeSettings)
    costs: CostSettings = field(default_factory=CostSettings)
    choice: ChoiceSettings = field(default_factory=ChoiceSettings)
    cadence: CadenceSettings = field(default_factory=CadenceSettings)
    probing: ProbingSettings = field(default_factory=ProbingSettings)
    run_length: RunLengthSettings = field(default_factory=RunLengthSettings)
    interruptions: InterruptionSettings = field(default_factory=InterruptionSettings)
    packing: PackingSettings = field(default_factory=PackingSettings)
    confidence: ConfidenceSettings = field(default_factory=ConfidenceSettings)


DEFAULTS = Settings()
