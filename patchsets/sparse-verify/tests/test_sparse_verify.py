"""Sparse verification gives the dense path's tokens for the dense path's coins.

The judge is ``dense``: upstream's branch in float64, request by request, over the
whole vocabulary (v0.5.23 eagle_sample; FlashInfer 0.7.2's renormalisations;
sampling.cuh's walk). It shares no code with the patch. The kernels run in
Triton's interpreter, in processes of their own (interpreted_kernels.py).

A kernel works in float32, so it may answer otherwise than float64 where a coin
lies on a boundary between two answers: an answer is also right if the judge
gives it once a coin, top_p or a threshold has moved by 2e-6 (``moved``).
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import interpreted_kernels
import pytest
import torch
from sglang.srt.environ import envs
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.speculative import eagle_utils, sparse_topk_verify
from sglang.srt.speculative.eagle_info import EagleVerifyInput

FLAG = "SGLANG_SPEC_SPARSE_TOPK_VERIFY"
BOUNDARY = 2e-6
NODES = 4
DRAWS = 400_000
CELLS = 24  # vocabulary of the chains that are drawn from so often
INF = math.inf


# --- batches ----------------------------------------------------------------


@dataclass
class Case:
    """A batch of chains, all of it made from one seed.

    Attributes:
        shape: changes the random logits [rows, vocab] and returns them.
        top_k, top_p, temperature: of each request in turn, repeated as needed.
        rank: drafts are the token of this rank in their row, or "far" for one
            that top-k leaves out, or "tied" for one that ties with the k-th.
        thresholds: threshold_single, threshold_acc.
        max_top_k: the host's bound; the largest top_k unless stale.
        change: changes the finished arguments.
    """

    vocab: int = 1_000
    requests: int = 3
    shape: Callable[[torch.Tensor], torch.Tensor] = lambda x: 3 * x
    top_k: tuple[int, ...] = (20,)
    top_p: tuple[float, ...] = (1.0, 0.95, 0.6, 0.2)
    temperature: tuple[float, ...] = (0.7, 1.3, 1.0)
    rank: int | str = 0
    thresholds: tuple[float, float] = (1.0, 1.0)
    max_top_k: int | None = None
    change: Callable[[dict[str, Any]], None] = lambda arguments: None
    seed: int = 1
    arguments: dict[str, Any] = field(default_factory=dict)

    def build(self) -> dict[str, Any]:
        """Return fresh arguments for ``verify_chain``, the same at every call."""
        generator = torch.Generator().manual_seed(self.seed)
        rows = self.requests * NODES
        logits = self.shape(torch.randn(rows, self.vocab, generator=generator))

        def each(values: tuple[float, ...], dtype: torch.dtype) -> torch.Tensor:
            repeated = [values[r % len(values)] for r in range(self.requests)]
            return torch.tensor(repeated, dtype=dtype)

        top_ks = each(self.top_k, torch.int32)
        order = logits.sort(dim=-1, descending=True, stable=True).indices
        order = order.view(self.requests, NODES, -1)
        if self.rank == "far":
            drafts = order[..., -1]
        elif self.rank == "tied":
            place = (top_ks.long() - 1)[:, None, None].expand(-1, NODES, 1)
            kth = logits.view(order.shape).gather(2, order.gather(2, place))
            drafts = (logits.view(order.shape) == kth).long().argmax(-1)
        else:
            drafts = order[..., self.rank]
        candidates = drafts.roll(1, dims=1).contiguous()
        following = torch.arange(1, NODES + 1).repeat(self.requests, 1)
        following[:, -1] = -1
        arguments = {
            "logits": logits,
            "candidates": candidates,
            "retrieve_index": torch.arange(rows).view(self.requests, NODES),
            "retrieve_next_token": following,
            "coins": torch.rand(self.requests, NODES, generator=generator),
            "final_coins": torch.rand(self.requests, generator=generator),
            "temperatures": each(self.temperature, torch.float32)[:, None].contiguous(),
            "top_ks": top_ks,
            "top_ps": each(self.top_p, torch.float32),
            "max_top_k": self.max_top_k or int(top_ks.max()),
            "threshold_single": self.thresholds[0],
            "threshold_acc": self.thresholds[1],
            "predict": torch.full((rows,), -7, dtype=torch.int32),
            "accept_index": torch.full((self.requests, NODES), -1, dtype=torch.int32),
            "num_correct_drafts": torch.full((self.requests,), -7, dtype=torch.int32),
        }
        self.change(arguments)
        return arguments


def rounded(step: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Tie logits by rounding them."""
    return lambda x: (3 * x / step).round() * step


def only(ids: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Mask all ids but a few, as a grammar does."""

    def shape(x: torch.Tensor) -> torch.Tensor:
        masked = torch.full_like(x, -INF)
        masked[:, ids] = x[:, ids]
        return masked

    return shape


def clustered(x: torch.Tensor) -> torch.Tensor:
    """Put the largest logits into few blocks: many more candidates than top_k."""
    x[:, :320] += 8
    return x


def with_values(**places: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Set single logits of every row: id -> value."""

    def shape(x: torch.Tensor) -> torch.Tensor:
        for name, value in places.items():
            x[:, int(name.removeprefix("id"))] = value
        return x

    return shape


def no_finite_row(x: torch.Tensor) -> torch.Tensor:
    """Mask every id of the rows of node 1."""
    x[1::NODES] = -INF
    return x


def reversed_places(arguments: dict[str, Any]) -> None:
    """Give nodes other places in predict than their own numbers."""
    arguments["retrieve_index"] = arguments["retrieve_index"].flip(0).flip(1).contiguous()


def short_chains(arguments: dict[str, Any]) -> None:
    """End the chains at node 0, 1, 2 and 3; all drafts before it pass."""
    for request in range(4):
        arguments["retrieve_next_token"][request, request:] = -1
    arguments["coins"].fill_(0.0)


def padded(arguments: dict[str, Any]) -> None:
    """Make rows the left part of wider ones, as logits cut to the vocabulary are."""
    logits = arguments["logits"]
    wide = torch.full((logits.shape[0], logits.shape[1] + 24), 99.0)
    wide[:, : logits.shape[1]] = logits
    arguments["logits"] = wide[:, : logits.shape[1]]


def coins_of(value: float) -> Callable[[dict[str, Any]], None]:
    """Give every coin one value."""

    def change(arguments: dict[str, Any]) -> None:
        arguments["coins"].fill_(value)
        arguments["final_coins"].fill_(value)

    return change


LEAST_ABOVE = 1 - 2**-24  # the largest coin that upstream draws
CASES: dict[str, Case] = {
    "alike": Case(vocab=31_040, top_p=(0.95,)),
    "per row": Case(vocab=31_040, top_k=(5, 20, 1, 13), requests=6, seed=2),
    "no top-p": Case(top_p=(1.0,), top_k=(20, 3), seed=3),
    "little top-p": Case(top_p=(1e-6, 0.02), top_k=(20,), temperature=(2.0,), seed=4),
    "steps of 1/2": Case(vocab=31_040, shape=rounded(0.5), top_k=(20, 12), seed=5),
    "steps of 1/4": Case(vocab=31_040, shape=rounded(0.25), top_k=(20, 7), seed=6),
    "a tied draft": Case(shape=rounded(0.5), rank="tied", top_p=(1.0, 0.9), seed=7),
    "grammar": Case(vocab=31_040, shape=only([5, 77, 30_000]), seed=8),
    "one allowed id": Case(shape=only([640]), seed=9),
    "top_k 1": Case(top_k=(1,), seed=10),
    "medium top_k": Case(top_k=(30, 52), seed=11),
    "large top_k": Case(top_k=(60, 128), temperature=(1.5, 3.0), seed=12),
    "large vocabulary": Case(vocab=100_000, seed=13),
    "the model's vocabulary": Case(vocab=248_320, requests=2, top_p=(0.95, 1.0), seed=14),
    "odd vocabulary": Case(vocab=1_021, seed=15),
    "vocabulary below a block": Case(vocab=37, top_k=(20, 36), seed=16),
    "clustered": Case(vocab=31_040, shape=clustered, top_k=(20, 24), seed=17),
    "clustered, large top_k": Case(vocab=31_040, shape=clustered, top_k=(100,), seed=18),
    "draft outside": Case(rank="far", requests=3, seed=19),
    "second best draft": Case(rank=1, seed=20),
    "threshold_acc": Case(thresholds=(1.0, 0.5), change=coins_of(0.5), requests=4, seed=21),
    "threshold_single": Case(
        thresholds=(0.3, 1.0), change=coins_of(0.97), temperature=(1.3,), requests=4, seed=22
    ),
    "both thresholds": Case(thresholds=(0.2, 0.2), rank=2, seed=23),
    "threshold_acc 0": Case(thresholds=(1.0, 0.0), rank=1, requests=2, seed=24),
    "more ties than slots": Case(
        shape=lambda x: x.round().clamp(-1, 1), vocab=5_000, top_p=(1.0, 0.9, 0.001), seed=25
    ),
    "ties below few": Case(
        shape=lambda x: with_values(id7=4.0, id2400=3.0)(x * 0), vocab=9_000, rank="tied", seed=26
    ),
    "ties below few, large top_k": Case(
        shape=lambda x: with_values(id7=4.0, id2400=3.0)(x * 0),
        vocab=9_000,
        requests=3,
        top_k=(90,),
        seed=27,
    ),
    "all equal": Case(shape=lambda x: x * 0 + 0.25, vocab=5_000, requests=3, seed=28),
    "zeros of both signs": Case(shape=lambda x: x.sign() * 0.0, vocab=300, requests=3, seed=29),
    "negative": Case(shape=lambda x: x - 50, seed=30),
    "NaN": Case(shape=with_values(id3=math.nan, id700=math.nan), requests=3, seed=31),
    "nothing allowed": Case(shape=no_finite_row, change=coins_of(0.0), seed=32),
    "short chains": Case(change=short_chains, requests=4, seed=33),
    "other places": Case(change=reversed_places, seed=34),
    "padded rows": Case(change=padded, vocab=1_000, seed=35),
    "a stale bound": Case(top_k=(20, 2), max_top_k=100, seed=36),
    "least coins": Case(change=coins_of(0.0), seed=37),
    "greatest coins": Case(change=coins_of(LEAST_ABOVE), rank=1, seed=38),
}


# --- the judge --------------------------------------------------------------


def dense_row(arguments: dict[str, Any], request: int, node: int) -> torch.Tensor:
    """Return a row's target probabilities [vocab], all zero where no logit is finite.

    Softmax, top-k (every p >= the k-th), renormalised; top-p (every p that less
    than top_p lies above), renormalised.
    """
    x = arguments["logits"][request * NODES + node].double()
    x = torch.where(x.isnan(), -INF, x)
    if x.max() == -INF:
        return torch.zeros_like(x)
    probs = torch.softmax(x / arguments["temperatures"].flatten()[request].double(), dim=0)
    # Equal logits stay equal through softmax, so probabilities may be compared.
    kth = probs.sort(descending=True).values[int(arguments["top_ks"][request]) - 1]
    probs = torch.where(probs >= kth, probs, 0.0)
    probs = probs / probs.sum()
    top_p = float(arguments["top_ps"][request])
    if top_p >= 1:
        return probs
    levels, level_of = probs.unique(return_inverse=True)
    mass = torch.zeros_like(levels).index_add_(0, level_of, probs)
    above = mass.flip(0).cumsum(0).flip(0) - mass
    probs = torch.where(above[level_of] < top_p, probs, 0.0)
    return probs / probs.sum()


def dense(arguments: dict[str, Any], request: int) -> tuple[int, int]:
    """Walk one request's chain as upstream's kernel does, in float64: accepted, token."""
    single, acc = arguments["threshold_single"], max(arguments["threshold_acc"], 1e-9)
    drafts = arguments["candidates"][request]
    node = 0
    probs = dense_row(arguments, request, 0)
    while (child := int(arguments["retrieve_next_token"][request, node])) != -1:
        p = float(probs[drafts[child]])
        if p > 0 and (float(arguments["coins"][request, node]) < p / acc or p >= single):
            node = child
            probs = dense_row(arguments, request, node)
        else:
            probs[drafts[child]] = 0.0
            break
    sums = probs.cumsum(0)
    target = float(arguments["final_coins"][request]) * float(sums[-1])
    hits = ((sums > target) & (probs > 0)).nonzero()
    positive = (probs > 0).nonzero()
    if len(hits):
        return node, int(hits[0])
    return node, int(positive[-1]) if len(positive) else len(probs) - 1


def moved(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Move what decides by the width of a boundary, one at a time, down and up."""
    for shift in (-BOUNDARY, BOUNDARY):
        for name in ("coins", "final_coins", "top_ps"):
            value = arguments[name]
            # top_p 1 is no boundary: it means no cut.
            moving = value + shift if name != "top_ps" else torch.where(value < 1, value + shift, 1)
            yield arguments | {name: moving.clamp(0, 1)}
        yield arguments | {"threshold_single": arguments["threshold_single"] + shift}


def answers(arguments: dict[str, Any]) -> list[tuple[int, int]]:
    """Read (accepted, token) of every request from outputs that a call has written."""
    accepted = arguments["num_correct_drafts"].tolist()
    return [
        (count, int(arguments["predict"][arguments["retrieve_index"][request, count]]))
        for request, count in enumerate(accepted)
    ]


@functools.cache
def judged(name: str) -> list[tuple[int, int]]:
    """Return the judge's answers to a case."""
    arguments = CASES[name].build()
    return [dense(arguments, request) for request in range(CASES[name].requests)]


def off(name: str, found: list[tuple[int, int]]) -> list[str]:
    """Return the requests whose answer is not the judge's, boundaries aside."""
    arguments = CASES[name].build()
    wrong = []
    for request, (answer, judge) in enumerate(zip(found, judged(name), strict=True)):
        if answer != judge and answer not in [dense(other, request) for other in moved(arguments)]:
            wrong.append(f"request {request}: {answer}, not {judge}")
    return wrong


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with interpreted_kernels.workers(2) as running:
        yield running


@pytest.fixture(scope="module")
def interpreted(pool: ProcessPoolExecutor) -> dict[str, Future]:
    """Start every case at once, so that the workers run beside the other tests."""
    return {
        name: pool.submit(interpreted_kernels.verify, case.build()) for name, case in CASES.items()
    }


@pytest.fixture(scope="module", autouse=True)
def started(interpreted: dict[str, Future]) -> None:
    """Have them started before the first test."""


# --- the chi-square test and its controls, which need no worker --------------


def sampled(
    probs: torch.Tensor, drafts: torch.Tensor, coins: torch.Tensor, final: torch.Tensor
) -> torch.Tensor:
    """Draw from given probabilities [nodes, vocab] as upstream does: cells [draws]."""
    nodes, vocab = probs.shape
    passed = coins[:, :-1] < probs[torch.arange(nodes - 1), drafts]
    accepted = passed.long().cumprod(1).sum(1)
    left = probs.clone()
    left[torch.arange(nodes - 1), drafts] = 0.0
    sums = left.cumsum(1)
    token = torch.searchsorted(
        sums[accepted], (final * sums[accepted, -1])[:, None], right=True
    ).squeeze(1)
    return accepted * vocab + token


def p_value(cells: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the chi-square p-value of drawn cells against their probabilities."""
    counts = torch.bincount(cells, minlength=expected.numel()).double()
    expected = expected * cells.numel()
    if counts[expected == 0].sum() > 0:
        return 0.0
    common = expected >= 10
    pairs = [(counts[common], expected[common])]
    rare = ~common & (expected > 0)
    if rare.any():
        pairs.append((counts[rare].sum()[None], expected[rare].sum()[None]))
    statistic = float(sum(((c - e) ** 2 / e).sum() for c, e in pairs))
    freedom = sum(len(c) for c, _ in pairs) - 1
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


@dataclass
class Chain:
    """One chain of four nodes with its exact answer probabilities."""

    arguments: dict[str, Any]
    probs: torch.Tensor
    expected: torch.Tensor

    @property
    def drafts(self) -> torch.Tensor:
        return self.arguments["candidates"][0, 1:]


def chain(shape: Callable[[torch.Tensor], torch.Tensor], top_p: float) -> Chain:
    case = Case(
        vocab=CELLS,
        requests=1,
        shape=shape,
        top_k=(8,),
        top_p=(top_p,),
        temperature=(1.0,),
        rank=1,
    )
    arguments = case.build()
    probs = torch.stack([dense_row(arguments, 0, node) for node in range(NODES)])
    expected = torch.zeros(NODES, CELLS, dtype=torch.float64)
    reach = 1.0
    for node, draft in enumerate([*arguments["candidates"][0, 1:].tolist(), None]):
        rest = probs[node].clone()
        if draft is not None:
            rest[draft] = 0.0
        expected[node] = reach * rest
        reach *= float(probs[node, draft]) if draft is not None else 1.0
    return Chain(arguments, probs, expected.flatten())


def coins(seed: int, nodes: int = NODES) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.rand(DRAWS, nodes, generator=generator),
        torch.rand(DRAWS, generator=generator),
    )


def drawn_by_definition(subject: Chain, seed: int) -> torch.Tensor:
    """Draw with the patch's torch definition, one request a draw: cells [draws]."""
    cells = []
    part = 40_000
    given, final = coins(seed)
    for first in range(0, DRAWS, part):
        places = torch.arange(part * NODES).view(part, NODES)
        many = {
            key: value.repeat(part, *[1] * (value.ndim - 1)) if torch.is_tensor(value) else value
            for key, value in subject.arguments.items()
        }
        many |= {
            "retrieve_index": places,
            "coins": given[first : first + part],
            "final_coins": final[first : first + part],
        }
        sparse_topk_verify.verify_chain_torch(**many)
        accepted = many["num_correct_drafts"].long()
        token = many["predict"].view(part, NODES).gather(1, accepted[:, None]).squeeze(1)
        cells.append(accepted * CELLS + token)
    return torch.cat(cells)


@pytest.mark.parametrize(
    ("shape", "top_p"), [(lambda x: 1.5 * x, 1.0), (rounded(0.5), 0.8)], ids=["plain", "tied"]
)
def test_answers_are_distributed_as_the_dense_path_s(shape: Callable, top_p: float) -> None:
    subject = chain(shape, top_p)
    assert p_value(drawn_by_definition(subject, seed=40), subject.expected) > 1e-3


def test_control_the_judge_s_own_sampler_passes_chi_square() -> None:
    subject = chain(rounded(0.5), 0.8)
    cells = sampled(subject.probs, subject.drafts, *coins(41))
    assert p_value(cells, subject.expected) > 1e-3


def test_control_ties_dropped_fail_chi_square() -> None:
    subject = chain(rounded(0.5), 1.0)
    x = subject.arguments["logits"].double()
    kth = x.sort(dim=-1, descending=True).values[:, 7:8]
    assert ((x == kth).sum(1) + (x > kth).sum(1) > 8).any(), "no tie to drop"
    exact_k = torch.full_like(x, -INF).scatter_(1, x.topk(8).indices, x.topk(8).values)
    probs = []
    for node in range(NODES):
        arguments = subject.arguments | {"logits": exact_k.float()}
        probs.append(dense_row(arguments, 0, node))
    cells = sampled(torch.stack(probs), subject.drafts, *coins(42))
    assert p_value(cells, subject.expected) < 1e-9


def test_control_top_p_before_top_k_fails_chi_square() -> None:
    subject = chain(lambda x: 1.5 * x, 0.8)
    order = subject.arguments | {"top_ks": torch.tensor([CELLS])}
    probs = torch.stack([dense_row(order, 0, node) for node in range(NODES)])
    kth = probs.sort(dim=-1, descending=True).values[:, 7:8]
    probs = torch.where(probs >= kth, probs, 0.0)
    probs /= probs.sum(-1, keepdim=True)
    cells = sampled(probs, subject.drafts, *coins(43))
    assert p_value(cells, subject.expected) < 1e-9


def test_control_a_descending_last_draw_passes_chi_square_and_fails_same_coins() -> None:
    subject = chain(lambda x: 1.5 * x, 1.0)
    given, final = coins(44)
    order = subject.probs.argsort(dim=-1, descending=True)
    ranked = subject.probs.gather(1, order)
    place = order.argsort(dim=-1)[torch.arange(NODES - 1), subject.drafts]
    cells = sampled(ranked, place, given, final)
    accepted = cells // CELLS
    token = order[accepted, cells % CELLS]
    assert p_value(accepted * CELLS + token, subject.expected) > 1e-3
    ascending = sampled(subject.probs, subject.drafts, given, final)
    assert (accepted * CELLS + token != ascending).double().mean() > 0.3


# --- same coins, same tokens -------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_definition_answers_as_the_dense_path(name: str) -> None:
    arguments = CASES[name].build()
    sparse_topk_verify.verify_chain_torch(**arguments)
    assert off(name, answers(arguments)) == []


@pytest.mark.parametrize("name", CASES)
def test_kernels_answer_as_the_dense_path(name: str, interpreted: dict[str, Future]) -> None:
    arguments = CASES[name].build()
    arguments |= interpreted[name].result()
    assert off(name, answers(arguments)) == []


@pytest.mark.parametrize("name", CASES)
def test_kernels_write_what_the_dense_path_writes(
    name: str, interpreted: dict[str, Future]
) -> None:
    arguments = CASES[name].build()
    arguments |= interpreted[name].result()
    places, drafts = arguments["retrieve_index"], arguments["candidates"]
    written = torch.full_like(arguments["predict"], -7)
    for request, (accepted, token) in enumerate(answers(arguments)):
        assert 0 <= accepted < NODES
        for node in range(accepted):
            written[places[request, node]] = drafts[request, node + 1]
        written[places[request, accepted]] = token
        line = [*places[request, : accepted + 1].tolist(), *[-1] * (NODES - 1 - accepted)]
        assert arguments["accept_index"][request].tolist() == line
    assert torch.equal(arguments["predict"], written)


def test_the_cases_hold_what_their_names_say() -> None:
    """Without these a case could pass and prove nothing."""
    for name in ("steps of 1/2", "steps of 1/4", "a tied draft"):
        arguments = CASES[name].build()
        k = arguments["top_ks"].repeat_interleave(NODES).long()[:, None]
        x = arguments["logits"]
        kth = x.sort(dim=-1, descending=True).values.gather(1, k - 1)
        assert ((x >= kth).sum(1) > k[:, 0]).sum() > len(x) // 4, name
    assert {accepted for name in CASES for accepted, _ in judged(name)} == set(range(NODES))
    assert all(accepted == 0 for accepted, _ in judged("draft outside"))
    assert [accepted for accepted, _ in judged("short chains")] == [0, 1, 2, 3]
    assert {token for _, token in judged("nothing allowed")} == {999}


@pytest.mark.parametrize("run", ["definition", "kernels"])
def test_boundaries_are_the_exception(run: str, interpreted: dict[str, Future]) -> None:
    """Nearly all answers are the judge's own, none of its neighbours'."""
    same = total = 0
    for name, case in CASES.items():
        arguments = case.build()
        if run == "kernels":
            arguments |= interpreted[name].result()
        else:
            sparse_topk_verify.verify_chain_torch(**arguments)
        same += sum(a == b for a, b in zip(answers(arguments), judged(name), strict=True))
        total += case.requests
    assert same >= total - 3


@pytest.mark.parametrize("name", ["threshold_acc", "threshold_single", "both thresholds"])
def test_thresholds_change_answers(name: str) -> None:
    arguments = CASES[name].build()
    plain = arguments | {"threshold_single": 1.0, "threshold_acc": 1.0}
    requests = range(CASES[name].requests)
    assert [dense(arguments, r)[0] for r in requests] != [dense(plain, r)[0] for r in requests]


# --- selection ---------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_selection_is_top_k_with_all_its_ties(name: str, interpreted: dict[str, Future]) -> None:
    """The list holds the top_k finite logits and what ties with them, as far as it has room."""
    found = interpreted[name].result()
    arguments = CASES[name].build()
    x = arguments["logits"]
    x = torch.where(x.isnan(), -INF, x)
    for row, k in enumerate(arguments["top_ks"].repeat_interleave(NODES).tolist()):
        count = int(found["counts"][row])
        values, ids = found["values"][row, :count], found["ids"][row, :count].long()
        assert len(set(ids.tolist())) == count
        assert torch.equal(values, x[row, ids])
        top = x[row].topk(k).values
        wanted = ((x[row] >= top[-1]) & x[row].isfinite()).nonzero().flatten().tolist()
        listed = ids[values >= top[-1]].tolist()
        if len(wanted) <= found["ids"].shape[1] and len(wanted) <= k + 12:
            assert sorted(listed) == wanted
        else:
            # Ties beyond the list: what lies above them is in it, they fill it.
            above = (x[row] > top[-1]).nonzero().flatten().tolist()
            assert set(above) <= set(listed) <= set(wanted)
            assert len(listed) >= k
        assert torch.equal(values.sort(descending=True).values[:k], top[top.isfinite()])


def test_every_top_k_has_a_variant_with_room_for_ties() -> None:
    """12 ids beyond top_k keep common ties out of the slow path (bf16 logits)."""
    sizes = sparse_topk_verify._SIZES
    assert [size.max_top_k for size in sizes] == sorted(size.max_top_k for size in sizes)
    assert sizes[-1].max_top_k == sparse_topk_verify.MAX_TOP_K
    for size in sizes:
        assert size.slots >= size.max_top_k
        assert size.bins >= size.max_top_k
        assert size.kept >= size.max_top_k + 12


def test_every_variant_fits_a_block_of_the_target_card(pool: ProcessPoolExecutor) -> None:
    with interpreted_kernels.workers(1) as compilers:
        found = compilers.submit(interpreted_kernels.shared_bytes_on_sm120, 248_320, 6).result()
    assert len(found) == len(sparse_topk_verify._SIZES)
    assert max(found.values()) <= interpreted_kernels.SM120_SHARED_BYTES


def test_memory_beyond_the_logits_is_under_2_mib_at_twelve_requests() -> None:
    """72 rows of the model's vocabulary, top_k 20; three full tensors would be 205 MiB."""
    blocks = -(-248_320 // sparse_topk_verify._TILE.value) * sparse_topk_verify._LANES.value
    size = sparse_topk_verify._SIZES[0]
    scratch = sparse_topk_verify._workspace(
        72, 12, blocks, size.slots, size.kept, torch.device("cpu")
    )
    assert {part.untyped_storage().data_ptr() for part in scratch} == {
        scratch.maxima.untyped_storage().data_ptr()
    }
    assert scratch.maxima.untyped_storage().nbytes() < 2 << 20


# --- when it is used -----------------------------------------------------------


def verify_input(**changes: Any) -> EagleVerifyInput:
    settings = {"topk": 1, "spec_steps": 5, "num_verify_tokens": 6, "device": "cpu"} | changes
    return EagleVerifyInput.create_idle_input(**settings)


def sampling_info(**changes: Any) -> SamplingBatchInfo:
    settings: dict[str, Any] = {
        "temperatures": torch.ones(2, 1),
        "top_ps": torch.ones(2),
        "top_ks": torch.tensor([20, 5], dtype=torch.int32),
        "min_ps": torch.zeros(2),
        "is_all_greedy": False,
        "is_any_greedy": False,
        "need_top_p_sampling": False,
        "need_top_k_sampling": True,
        "need_min_p_sampling": False,
        "vocab_size": 1_000,
        "max_top_k": 20,
    }
    return SamplingBatchInfo(**settings | changes)


@pytest.fixture
def suitable(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine and settings under which the flag takes effect; returns the settings."""
    spec = SimpleNamespace(
        speculative_use_rejection_sampling=False,
        speculative_use_block_verification=False,
        speculative_accept_threshold_single=1.0,
        speculative_accept_threshold_acc=1.0,
    )
    monkeypatch.setattr("sglang.srt.runtime_context.get_spec", lambda: spec)
    monkeypatch.setattr("sglang.srt.utils.is_cuda", lambda: True)
    monkeypatch.setenv(FLAG, "1")
    return spec


def holds(
    given: EagleVerifyInput | None = None,
    info: SamplingBatchInfo | None = None,
    logits: torch.Tensor | None = None,
) -> bool:
    return sparse_topk_verify.applies(
        given or verify_input(),
        info or sampling_info(),
        torch.zeros(12, 1_000) if logits is None else logits,
    )


def test_off_by_default(suitable: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FLAG)
    assert envs.SGLANG_SPEC_SPARSE_TOPK_VERIFY.get() is False
    assert holds() is False
    monkeypatch.setenv(FLAG, "0")
    assert holds() is False


def test_on_when_everything_suits(suitable: SimpleNamespace) -> None:
    assert holds() is True


FALLS_BACK: dict[str, dict[str, Any]] = {
    "a tree": {"given": {"topk": 2}},
    "an irregular tree": {"given": {"topk": -1}},
    "fewer levels than nodes": {"given": {"spec_steps": 4}},
    "min-p": {"info": {"need_min_p_sampling": True}},
    "a watermark": {"info": {"has_watermark_candidates": True}},
    "a row without top_k": {"info": {"max_top_k": None}},
    "top_k 0": {"info": {"max_top_k": 0}},
    "a large top_k": {"info": {"max_top_k": 129}},
    "top_k of the vocabulary": {"logits": torch.zeros(12, 20)},
    "bf16 logits": {"logits": torch.zeros(12, 1_000, dtype=torch.bfloat16)},
    "logits by column": {"logits": torch.zeros(1_000, 12).t()},
    "a vocabulary beyond the counters": {"logits": torch.zeros(1, (1 << 21) + 1)},
}


@pytest.mark.parametrize("name", FALLS_BACK)
def test_falls_back(suitable: SimpleNamespace, name: str) -> None:
    changes = FALLS_BACK[name]
    given = verify_input(**changes.get("given", {}))
    info = sampling_info(**changes.get("info", {}))
    assert holds(given, info, changes.get("logits")) is False


def test_falls_back_for_rejection_sampling(suitable: SimpleNamespace) -> None:
    suitable.speculative_use_rejection_sampling = True
    assert holds() is False


def test_falls_back_without_cuda(
    suitable: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang.srt.utils.is_cuda", lambda: False)
    assert holds() is False


@pytest.mark.parametrize("max_top_k", [1, 24, 25, 52, 53, 128])
def test_bounds_of_top_k(suitable: SimpleNamespace, max_top_k: int) -> None:
    assert holds(info=sampling_info(max_top_k=max_top_k)) is True


def test_conditions_read_no_device_value() -> None:
    """A value on the device would make the host wait at every step."""
    source = inspect.getsource(sparse_topk_verify.applies)
    for name in ("top_ks", "top_ps", "temperatures", ".item", ".any", ".max(", ".tolist"):
        assert name not in source.partition('"""')[2].partition('"""')[2]


def test_module_imports_nothing_of_sglang() -> None:
    tree = ast.parse(inspect.getsource(sparse_topk_verify))
    for statement in tree.body:
        names = [n for n in ast.walk(statement) if isinstance(n, (ast.Import, ast.ImportFrom))]
        typing_only = isinstance(statement, ast.If)
        if isinstance(statement, (ast.Import, ast.ImportFrom)) and not typing_only:
            assert all("sglang" not in ast.unparse(name) for name in names)


# --- the hook -------------------------------------------------------------------


class Group:
    """A tensor-parallel group that notes what is broadcast."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.sent: list[tuple[int, int]] = []

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        self.sent.append((tensor.data_ptr(), src))


@dataclass
class Step:
    """One call of ``eagle_sample`` on a CPU, as on a GPU but for the kernels."""

    arguments: dict[str, Any]
    info: SamplingBatchInfo
    group: Group
    ran: list[str] = field(default_factory=list)

    def run(self) -> tuple[torch.Tensor, ...]:
        requests = self.arguments["retrieve_index"].shape[0]
        given = EagleVerifyInput.create_idle_input(
            topk=1, spec_steps=NODES - 1, num_verify_tokens=NODES, device="cpu"
        )
        given.draft_token = self.arguments["candidates"].flatten()
        for name in ("retrieve_index", "retrieve_next_token"):
            setattr(given, name, self.arguments[name])
        given.retrieve_next_sibling = torch.full_like(given.retrieve_index, -1)
        batch = SimpleNamespace(
            device="cpu",
            forward_mode=SimpleNamespace(is_idle=lambda: False),
            seq_lens=torch.arange(10, 10 + requests),
            sampling_info=self.info,
            return_logprob=False,
        )
        logits = SimpleNamespace(next_token_logits=self.arguments["logits"].clone())
        torch.manual_seed(99)
        return eagle_utils.eagle_sample(given, batch, logits)


@pytest.fixture
def step(suitable: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Step:
    """Let ``eagle_sample`` take its sampling branch here, with torch in the kernels' places."""
    arguments = CASES["per row"].build()
    info = sampling_info(
        temperatures=arguments["temperatures"],
        top_ks=arguments["top_ks"],
        top_ps=arguments["top_ps"],
        need_top_p_sampling=True,
    )
    group = Group(world_size=1)
    made = Step(arguments, info, group)
    parallel = SimpleNamespace(tp_group=group, attn_tp_group=Group(1))
    monkeypatch.setattr("sglang.srt.runtime_context.get_parallel", lambda: parallel)
    monkeypatch.setattr("sglang.srt.layers.dp_attention.is_dp_attention_enabled", lambda: False)
    # The real one needs packages that no test here does (einops and more).
    rest = ModuleType("sglang.srt.speculative.spec_utils")
    rest.SIMULATE_ACC_LEN, rest.SIMULATE_ACC_TOKEN_MODE = 0, "fixed"
    rest.generate_simulated_accept_index = None
    monkeypatch.setitem(sys.modules, rest.__name__, rest)
    monkeypatch.setattr(eagle_utils, "get_spec", lambda: suitable)
    monkeypatch.setattr(eagle_utils, "_verify_uses_greedy", lambda **_: False)

    def top_k_renorm(probs: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        kth = probs.sort(dim=-1, descending=True).values.gather(1, k.long()[:, None] - 1)
        probs = torch.where(probs >= kth, probs, 0.0)
        return probs / probs.sum(-1, keepdim=True)

    def top_p_renorm(probs: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        ordered, order = probs.sort(dim=-1, descending=True)
        first = torch.searchsorted(-ordered, -ordered)
        above = (ordered.cumsum(-1) - ordered).gather(1, first)
        kept = torch.where((above < p[:, None]) | (p[:, None] >= 1), ordered, 0.0)
        probs = torch.zeros_like(probs).scatter_(1, order, kept)
        return probs / probs.sum(-1, keepdim=True)

    def verify(**given: Any) -> None:
        made.ran.append("dense")
        for request in range(given["candidates"].shape[0]):
            rows = given["target_probs"][request].double().clone()
            node = 0
            accept = given["accept_index"][request]
            accept[0] = given["retrive_index"][request, 0]
            while (child := int(given["retrive_next_token"][request, node])) != -1:
                draft = given["candidates"][request, child]
                if given["uniform_samples"][request, node] >= rows[node, draft]:
                    rows[node, draft] = 0.0
                    break
                given["predicts"][given["retrive_index"][request, node]] = draft
                node = child
                accept[node] = given["retrive_index"][request, node]
            sums = rows[node].cumsum(0)
            target = given["uniform_samples_for_final_sampling"][request].double() * sums[-1]
            place = given["retrive_index"][request, node]
            given["predicts"][place] = int((sums > target).nonzero()[0])
            given["accept_token_num"][request] = node

    def definition(**given: Any) -> None:
        made.ran.append("sparse")
        sparse_topk_verify.verify_chain_torch(
            **given | {"candidates": given["candidates"].view(-1, NODES)}
        )

    # 0.5.22 has no such names without a GPU.
    kernels = {
        "top_k_renorm_prob": top_k_renorm,
        "top_p_renorm_prob": top_p_renorm,
        "tree_speculative_sampling_target_only": verify,
    }
    for name, stand_in in kernels.items():
        monkeypatch.setattr(eagle_utils, name, stand_in, raising=False)
    monkeypatch.setattr(sparse_topk_verify, "verify_chain", definition)
    return made


@pytest.mark.parametrize("seeded", [False, True], ids=["drawn coins", "seeds"])
def test_flag_changes_no_token(step: Step, monkeypatch: pytest.MonkeyPatch, seeded: bool) -> None:
    """The same coins reach both branches: same calls in the same order."""
    if seeded:
        step.info.sampling_seed = torch.arange(6, dtype=torch.int64)

        def hashed(seed: torch.Tensor, lens: torch.Tensor, cols: torch.Tensor) -> torch.Tensor:
            mixed = seed.to(torch.int64)[:, None] * 7_919 + lens.to(torch.int64)[:, None] * 104_729
            return (mixed + cols[None, :] * 2_654_435_761) % (2**32)

        monkeypatch.setattr("sglang.kernels.ops.sampling.murmur_hash.murmur_hash32", hashed)
    on = step.run()
    monkeypatch.setenv(FLAG, "0")
    off_ = step.run()
    assert step.ran == ["sparse", "dense"]
    for with_flag, without in zip(on, off_, strict=True):
        assert torch.equal(with_flag, without)
    assert len(set(on[1].tolist())) > 1


def test_lengths_count_the_last_token_and_outputs_keep_their_types(step: Step) -> None:
    predict, lengths, accept_index = step.run()
    assert (predict.dtype, lengths.dtype, accept_index.dtype) == (torch.int32,) * 3
    assert torch.equal(lengths, (accept_index != -1).sum(1).to(torch.int32))


@pytest.mark.parametrize("flag", ["0", "1"])
def test_rank_0_decides_for_all_ranks(
    step: Step, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.setenv(FLAG, flag)
    step.group.world_size = 2
    predict, _, accept_index = step.run()
    assert [source for _, source in step.group.sent] == [0, 0, 0]
    assert [pointer for pointer, _ in step.group.sent][:2] == [
        predict.data_ptr(),
        accept_index.data_ptr(),
    ]


def test_dp_attention_uses_its_own_group(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt import runtime_context

    runtime_context.get_parallel().attn_tp_group.world_size = 2
    monkeypatch.setattr("sglang.srt.layers.dp_attention.is_dp_attention_enabled", lambda: True)
    step.run()
    assert len(runtime_context.get_parallel().attn_tp_group.sent) == 3
    assert step.group.sent == []


def test_thresholds_of_the_server_reach_the_kernels(
    step: Step, suitable: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    suitable.speculative_accept_threshold_single = 0.25
    suitable.speculative_accept_threshold_acc = 0.5
    seen = {}
    monkeypatch.setattr(sparse_topk_verify, "verify_chain", lambda **given: seen.update(given))
    step.run()
    assert (seen["threshold_single"], seen["threshold_acc"]) == (0.25, 0.5)


def test_hook_stands_once_before_the_dense_branch() -> None:
    source = inspect.getsource(eagle_utils.eagle_sample)
    assert source.count("sparse_topk_verify.applies(") == 1
    assert source.count("sparse_topk_verify.sample(") == 1
    assert source.index("sparse_topk_verify.sample(") < source.index("sampling_softmax(")
