"""A closed-loop client: one batch of equal requests, and its steady part as the server saw it.

Throughput counts only rounds in which every request of the batch lives: the host's prefill, the
ramp and the tail are outside. Times are the server's, taken where a round's result is processed.
"""

import json
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, cycle, repeat
from typing import Any, NamedTuple

from benchmarks.stats.tokens import PACKED

# Rounds after a prefill that still wait for it, or launch without a predecessor in flight.
SKIPPED_ROUNDS = 3
# Fewer rounds than this say nothing about a rate.
MIN_ROUNDS = 4
_rooms = count(1)  # in which the nodes of a pair meet for a request


class Round(NamedTuple):
    """A round as the measuring plugin records it; batch size 0: not a decode round."""

    time_ns: int
    batch_size: int
    num_tokens: int
    num_draft_tokens: int | None
    has_finished: bool
    replayed_graph: bool
    is_packed: bool = False  # of each request another number of drafts was verified


class Window(NamedTuple):
    """The steady part of one batch."""

    num_tokens: int
    seconds: float
    # By num_steps, "none" where nothing speculates, "packed" where each request had its own number
    # of drafts; of zero steps each decode counts.
    rounds: dict[str, int]
    num_eager_rounds: int
    num_packed_tokens: int = 0  # that packed rounds gave

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the whole batch per second."""
        return self.num_tokens / self.seconds


def full_run(rounds: Sequence[Sequence[Any]], batch_size: int) -> list[Round]:
    """Returns the longest run of decode rounds in which all ``batch_size`` requests lived."""
    best: list[Round] = []
    run: list[Round] = []
    for fields in rounds:
        each = Round(*fields)
        if each.batch_size == batch_size and not each.has_finished:
            run.append(each)
        else:
            run = []
        if len(run) > len(best):
            best = run
    return best


def timed_window(
    rounds: Sequence[Sequence[Any]], batch_size: int, settle_s: float, window_s: float
) -> Window:
    """Returns ``window_s`` of the longest full run, after ``settle_s`` of it.

    Raises:
        ValueError: The run is too short to be measured.
    """
    run = full_run(rounds, batch_size)
    steady = run[SKIPPED_ROUNDS:]
    if steady:
        start_ns = max(run[0].time_ns + int(settle_s * 1e9), steady[0].time_ns)
        steady = [each for each in steady if each.time_ns >= start_ns]
    if steady:
        end_ns = steady[0].time_ns + int(window_s * 1e9)
        steady = [each for each in steady if each.time_ns <= end_ns]
    return window_of(steady, batch_size, len(rounds))


def timed_windows(
    rounds: Sequence[Sequence[Any]], batch_size: int, settle_s: float, window_s: float, count: int
) -> list[Window]:
    """Returns ``count`` windows of ``window_s``, one after the other, after ``settle_s``."""
    starts = (settle_s + idx * window_s for idx in range(count))
    return [timed_window(rounds, batch_size, start_s, window_s) for start_s in starts]


def window_of(steady: Sequence[Round], batch_size: int, num_rounds: int) -> Window:
    """Returns the window of rounds in a row; the first one's end is where the clock starts.

    Raises:
        ValueError: They are too few to be measured.
    """
    if len(steady) < MIN_ROUNDS + 1:
        raise ValueError(
            f"batch {batch_size}: {len(steady)} steady rounds of {num_rounds}, at least "
            f"{MIN_ROUNDS + 1} needed; raise --new-tokens or the window."
        )
    counted = steady[1:]
    steps: Counter[str] = Counter()
    for each in counted:
        steps[steps_of(each)] += decodes_of(each)
    return Window(
        num_tokens=sum(each.num_tokens for each in counted),
        seconds=(counted[-1].time_ns - steady[0].time_ns) / 1e9,
        rounds=dict(sorted(steps.items())),
        num_eager_rounds=sum(not each.replayed_graph for each in counted),
        num_packed_tokens=sum(each.num_tokens for each in counted if each.is_packed),
    )


def steps_of(each: Round) -> str:
    """Returns a round's draft steps; "none": nothing speculates, "packed": rows differ."""
    if each.num_draft_tokens is None:
        return "none"
    return PACKED if each.is_packed else str(each.num_draft_tokens - 1)


def decodes_of(each: Round) -> int:
    """Returns how many tokens without a draft before them a round gave each request."""
    return each.num_tokens // each.batch_size if each.num_draft_tokens == 1 else 1


def as_raw(window: Window) -> dict[str, Any]:
    """Returns a window as it is kept in a file."""
    return {
        "num_tokens": window.num_tokens,
        "seconds": round(window.seconds, 6),
        "rounds": window.rounds,
        "num_eager_rounds": window.num_eager_rounds,
        "num_packed_tokens": window.num_packed_tokens,
    }


def generate(
    url: str, prompts: Sequence[Sequence[int]], new_tokens: int, **sampling: Any
) -> list[dict[str, Any]]:
    """Sends ``prompts`` as one batch; returns answers of exactly ``new_tokens`` tokens.

    Raises:
        RuntimeError: An answer is shorter or longer than asked for, so that the part in which all
            requests live is shorter than it seems.
    """
    answers = post_generate(
        url, prompts, {"max_new_tokens": new_tokens, "ignore_eos": True, **sampling}
    )
    lengths = {len(answer["output_ids"]) for answer in answers}
    if lengths != {new_tokens}:
        raise RuntimeError(f"asked for {new_tokens} tokens per request, got lengths {lengths}.")
    return answers


class PrefillNode(NamedTuple):
    """The server of a PD pair that reads the prompts; the other one asks it for their KV."""

    url: str
    bootstrap_port: int


def generate_closed(
    url: str,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    concurrency: int,
    ignore_eos: bool = False,
    ids: Sequence[str] | None = None,
    temperature: float = 0.0,
    adapters: Sequence[str | None] = (),
    prefill: PrefillNode | None = None,
) -> list[dict[str, Any]]:
    """Keeps ``concurrency`` requests in flight; answers end at the limit, or by themselves.

    ``ids`` names the requests, one per prompt; without it the server does. ``adapters`` take turns.
    ``prefill`` reads the prompts where the server is the decode node of a pair.
    """
    sampling = {
        "max_new_tokens": max_new_tokens,
        "ignore_eos": ignore_eos,
        "temperature": temperature,
    }

    def send(prompt: Sequence[int], request_id: str | None, adapter: str | None) -> dict[str, Any]:
        named: dict[str, Any] = {} if request_id is None else {"rid": [request_id]}
        if adapter is not None:
            named["lora_path"] = [adapter]
        if prefill is not None:
            return post_to_pair(prefill, url, prompt, sampling, **named)
        return post_generate(url, [prompt], sampling, **named)[0]

    names = repeat(None) if ids is None else ids
    with ThreadPoolExecutor(concurrency) as clients:
        return list(clients.map(send, prompts, names, cycle(adapters or (None,))))


def post_to_pair(
    prefill: PrefillNode,
    url: str,
    prompt: Sequence[int],
    sampling: Mapping[str, Any],
    **fields: Any,
) -> dict[str, Any]:
    """Sends a request to both nodes of a PD pair; returns the answer of the decode node."""
    fields |= {
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": prefill.bootstrap_port,
        "bootstrap_room": next(_rooms),
    }
    with ThreadPoolExecutor(1) as other:
        reading = other.submit(post_generate, prefill.url, [prompt], sampling, **fields)
        (answer,) = post_generate(url, [prompt], sampling, **fields)
        reading.result()
    return answer


def post_generate(
    url: str,
    prompts: Sequence[Sequence[int]],
    sampling: Mapping[str, Any],
    timeout_s: float = 300.0,
    **fields: Any,
) -> list[dict[str, Any]]:
    """Sends one batch, greedily unless ``sampling`` says otherwise; ``fields`` join the body."""
    body = {"input_ids": prompts, "sampling_params": {"temperature": 0, **sampling}, **fields}
    answers: list[dict[str, Any]] = json.loads(post_json(f"{url}/generate", body, timeout_s))
    return answers


def post_json(url: str, body: Mapping[str, Any], timeout_s: float) -> bytes:
    """Sends a request; returns its answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return bytes(response.read())
