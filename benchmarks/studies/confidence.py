"""Does the draft's confidence tell which of its tokens will hold?

A round drafts NUM_STEPS tokens; how many hold decides where the next one begins, as in serving.
Every draft behind a right one is observed: it holds or not, and the head gave it a probability c.
Four models of whether it holds are fitted on half of the requests and judged on the others:

    position   theta[d]                              d: the draft's place in its round
    history    theta[d] + u * (what this request's drafts did so far)
    confidence theta[d] + w * logit c
    both       theta[d] + u * ... + w * ...

Text is the target's own, from examples/training/write_text.py: greedy, or drawn at a temperature.
No server is needed; a GPU makes it fast. From the project's root (A, B: greedy and sampled text):

    python3 -m benchmarks.studies.confidence run --model T --head H --samples greedy=A sampled=B \\
        --git-sha SHA --out $OUT
    python3 -m benchmarks.studies.confidence merge runs/confidence-1.json \\
        --result benchmarks/results/current/confidence.json.xz
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.lab.run_files import (
    add_merge,
    add_run_flags,
    begin_run,
    publish,
    read_runs,
    run_command,
    write_run,
)
from benchmarks.stats.differences import differences, keys
from benchmarks.stats.tables import table

NUM_STEPS = 7
MAX_LEN = 512  # tokens of a text
BATCH = 8
CONFIDENCE_DIGITS, DIGITS = 5, 4
MOST_SURE = 1e-5  # probabilities are clipped to [MOST_SURE, 1 - MOST_SURE]
CONCENTRATIONS = (1.0, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0)  # drafts that count as seen before
NEWTON_STEPS, RIDGE = 25, 1e-4
FEWEST_REQUESTS = 4  # of a group: half of them are fitted to
RESAMPLED = 1000

Raw = Mapping[str, Any]
Floats = NDArray[np.float64]


class Model(NamedTuple):
    """What a model takes beside a draft's place."""

    history: bool = False
    confidence: bool = False


MODELS = {
    "position": Model(),
    "history": Model(history=True),
    "confidence": Model(confidence=True),
    "both": Model(history=True, confidence=True),
}


class Fit(NamedTuple):
    """A model as it was learnt."""

    loss: float
    concentration: float
    weights: Floats


class Drafts(NamedTuple):
    """Every observed draft of some requests, in order."""

    request: NDArray[np.int64]
    place: NDArray[np.int64]  # in its round, from 0
    logit: Floats  # of its confidence
    holds: NDArray[np.bool_]


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--model", type=Path, required=True, help="the target's folder")
    run_.add_argument("--head", type=Path, required=True, help="as SGLang loads it")
    run_.add_argument("--samples", nargs="+", required=True, metavar="KIND=FILE")
    run_.add_argument("--max-samples", type=int, default=64, help="of a domain and kind [64]")
    add_run_flags(run_)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Drafts along every text; returns 0."""
    from examples.training.data import of_split, read_samples
    from examples.training.measure import Drafting, by_domains
    from examples.training.target import Target

    record, path = begin_run(args, "confidence")
    record["requests"] = []
    target = Target.load(args.model)
    drafting = Drafting.load(target, args.head)
    for given in args.samples:
        kind, _, file = given.partition("=")
        held_out = of_split(read_samples(Path(file)), "heldout")
        for domain, samples in by_domains(held_out, args.max_samples):
            for first in range(0, len(samples), BATCH):
                batch = samples[first : first + BATCH]
                for rounds in filter(None, rounds_of_texts(drafting, batch)):
                    record["requests"].append({"kind": kind, "domain": domain, "rounds": rounds})
            write_run(record, path)
    print(figure_table(build_result(record["provenance"], record["requests"])))
    return 0


def rounds_of_texts(drafting: Any, samples: Sequence[Any]) -> Iterator[list[Any]]:
    """Yields, per text, the rounds that serve it: how many drafts hold, and their confidences."""
    import torch

    from examples.training.unroll import hits_of

    with torch.no_grad():
        steps = drafting.unrolled(samples, MAX_LEN, NUM_STEPS)
        hits = hits_of(steps, drafting.vocabulary).cpu().numpy()
        sure = torch.stack([each.logits.float().softmax(-1).amax(-1) for each in steps], -1)
        counted = torch.stack([each.is_counted for each in steps], -1).cpu().numpy()
    for row, confidence in enumerate(sure.cpu().numpy()):
        yield rounds_of(hits[row], confidence, counted[row])


def rounds_of(
    hits: NDArray[np.bool_], confidence: NDArray[Any], is_counted: NDArray[np.bool_]
) -> list[Any]:
    """Returns the rounds that follow each other over one text.

    Args:
        hits: [text positions, NUM_STEPS]: the draft holds.
        confidence: the same shape.
        is_counted: the same shape: the target wrote the token to be drafted.
    """
    rounds: list[Any] = []
    positions = np.flatnonzero(is_counted[:, 0])[1:]  # the first token is the prefill's
    at, end = (int(positions[0]), int(positions[-1]) + 1) if len(positions) else (0, 0)
    while at < end:
        num_correct = int(np.cumprod(hits[at]).sum())
        num_observed = min(num_correct + 1, int(is_counted[at].sum()))  # none behind the text
        observed = confidence[at, :num_observed]
        rounds.append([num_correct, [round(float(each), CONFIDENCE_DIGITS) for each in observed]])
        at += num_correct + 1
    return rounds


def drafts_of(requests: Sequence[Raw]) -> Drafts:
    """Returns all observed drafts of some requests."""
    rows = [
        (number, place, confidence, place < num_correct)
        for number, request in enumerate(requests)
        for num_correct, confidences in request["rounds"]
        for place, confidence in enumerate(confidences)
    ]
    request, place, confidence, holds = (np.array(column) for column in zip(*rows, strict=True))
    return Drafts(request, place, logit(confidence), holds.astype(bool))


def logit(probability: Floats) -> Floats:
    """Returns log-odds, of probabilities that are not quite 0 or 1."""
    inside = np.clip(probability, MOST_SURE, 1 - MOST_SURE)
    return np.asarray(np.log(inside / (1 - inside)))


def history(drafts: Drafts, mean: float, concentration: float) -> Floats:
    """Returns how much likelier than ``mean`` a request's earlier drafts held, in log-odds.

    ``concentration`` drafts of the mean count as seen before the first.
    """
    first, holds = first_of_request(drafts), drafts.holds.astype(np.float64)
    num_seen = np.arange(len(holds)) - first
    held: Floats = np.cumsum(holds) - holds
    share: Floats = (concentration * mean + held - held[first]) / (concentration + num_seen)
    return logit(share) - logit(np.array(mean))


def first_of_request(drafts: Drafts) -> NDArray[np.int64]:
    """Returns, per draft, where those of its request begin."""
    begins = np.r_[True, drafts.request[1:] != drafts.request[:-1]]
    return np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))


def features(drafts: Drafts, model: Model, mean: float, concentration: float) -> Floats:
    """Returns the columns of a model: a constant a place, then what it takes."""
    columns = [drafts.place == place for place in range(NUM_STEPS)]
    if model.history:
        columns.append(history(drafts, mean, concentration))
    if model.confidence:
        columns.append(drafts.logit)
    return np.column_stack(columns).astype(np.float64)


def fitted(columns: Floats, holds: NDArray[np.bool_]) -> Floats:
    """Returns the coefficients of a logistic regression, by Newton's method."""
    weights = np.zeros(columns.shape[1])
    for _ in range(NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-columns @ weights))
        slope = columns.T @ (chance - holds) + RIDGE * weights
        curvature = (columns.T * (chance * (1 - chance))) @ columns
        weights = weights - np.linalg.solve(curvature + RIDGE * np.eye(len(weights)), slope)
    return weights


def log_losses(columns: Floats, holds: NDArray[np.bool_], weights: Floats) -> Floats:
    """Returns every draft's negative log-likelihood, in nats."""
    signed = np.where(holds, 1, -1) * (columns @ weights)
    return np.asarray(np.logaddexp(0, -signed))


def gain_over(gains: Floats, request: NDArray[np.int64]) -> dict[str, float]:
    """Returns the mean gain of a draft, and its standard error where requests are resampled."""
    sums = np.bincount(request, gains)
    numbers = np.bincount(request)
    drawn = np.random.default_rng(1).integers(len(sums), size=(RESAMPLED, len(sums)))
    means = sums[drawn].sum(1) / numbers[drawn].sum(1)
    return {"mean": round(float(gains.mean()), DIGITS), "stderr": round(float(means.std()), DIGITS)}


def judged(requests: Sequence[Raw]) -> dict[str, Any]:
    """Returns the models of some requests: fitted on every second one, judged on the others.

    What a model gains over `position` has the standard error of resampled requests.
    """
    learnt, unseen = drafts_of(requests[::2]), drafts_of(requests[1::2])
    mean = float(learnt.holds.mean())
    fits = {name: best_fit(learnt, model, mean) for name, model in MODELS.items()}
    losses = {
        name: log_losses(
            features(unseen, MODELS[name], mean, fit.concentration), unseen.holds, fit.weights
        )
        for name, fit in fits.items()
    }
    return {
        "num_requests": len(requests),
        "num_drafts": len(learnt.holds) + len(unseen.holds),
        "share_that_holds": round(float(np.r_[learnt.holds, unseen.holds].mean()), DIGITS),
        "tokens_per_round": round(tokens_per_round(requests), DIGITS),
        "log_loss": {name: round(float(each.mean()), DIGITS) for name, each in losses.items()},
        "gain": {
            name: gain_over(losses["position"] - each, unseen.request)
            for name, each in losses.items()
            if name != "position"
        },
        "slope": round(float(fits["confidence"].weights[-1]), DIGITS),
        "concentration": fits["history"].concentration,
    }


def best_fit(drafts: Drafts, model: Model, mean: float) -> Fit:
    """Returns a model with the concentration that fits best; without history there is one."""
    fits = []
    for concentration in CONCENTRATIONS if model.history else CONCENTRATIONS[:1]:
        columns = features(drafts, model, mean, concentration)
        weights = fitted(columns, drafts.holds)
        loss = float(log_losses(columns, drafts.holds, weights).mean())
        fits.append(Fit(loss, concentration, weights))
    return min(fits, key=lambda fit: fit.loss)


def tokens_per_round(requests: Sequence[Raw]) -> float:
    """Returns accepted drafts and bonus of a mean round of NUM_STEPS."""
    rounds = [num_correct for request in requests for num_correct, _ in request["rounds"]]
    return float(np.mean(rounds)) + 1


def build_result(origin: Raw, requests: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file: all text of a kind, then its domains."""
    groups: dict[str, list[Raw]] = {}
    for each in requests:
        groups.setdefault(f"{each['kind']}, all", []).append(each)
    for each in requests:
        groups.setdefault(f"{each['kind']}, {each['domain']}", []).append(each)
    return {
        "provenance": dict(origin),
        "groups": {
            name: judged(mine) for name, mine in groups.items() if len(mine) >= FEWEST_REQUESTS
        },
        "raw": list(requests),
    }


def check_confidence(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of the result."""
    problems = keys("file", result, {"provenance", "groups", "raw"})
    if problems:
        return problems
    return differences(result, build_result(result["provenance"], result["raw"]), "")


def figure_table(result: Raw) -> str:
    """Returns every group: how well the models tell, and how much confidence counts."""
    rows = [
        (
            name,
            each["num_drafts"],
            each["share_that_holds"],
            each["tokens_per_round"],
            *each["log_loss"].values(),
            *(f"{gain['mean']:.3f} ({gain['stderr']:.3f})" for gain in each["gain"].values()),
            each["slope"],
        )
        for name, each in result["groups"].items()
    ]
    named = ("text", "drafts", "hold", "tokens/round")
    gains = [f"gain, {name}" for name in MODELS if name != "position"]
    losses = [f"log-loss, {name}" for name in MODELS]
    return table((*named, *losses, *gains, "slope of logit c"), rows)


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from one run."""
    (record,) = read_runs(args.files)
    return publish(args, build_result(record["provenance"], record["requests"]), figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
