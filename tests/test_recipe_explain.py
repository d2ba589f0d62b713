"""The memory ledger of a recipe: SGLang's arithmetic, what was seen of it, what it warns of."""

import ast
import json
import math
import re
import zipfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from elsa_build.cli import main
from elsa_build.errors import ConfigError, UsageError
from elsa_build.images import geometry, served, sizing
from elsa_build.images import recipe as recipes
from elsa_build.images.bounds import Budget
from elsa_build.images.explain import Ask, explain
from elsa_build.images.ledger import ledger, strategies
from elsa_build.images.sizing import MIB, CopyPath, Serving, Strategy
from elsa_build.images.terms import Basis, Part
from tests import release

ROOT = Path(__file__).parent.parent
QWEN = geometry.model("qwen3.6-35b-a3b", ROOT)
ELSA = Serving(
    requests=8,
    slots=32,
    context=262144,
    strategy=Strategy.EXTRA_BUFFER_LAZY,
    state_bytes=2,
    kv_bytes=1,
    ring=16,
    draft_tokens=6,
    copy_path=CopyPath.CHUNKED,
)
SEEN = ((8, 411_000), (12, 355_000), (16, 299_000))
"""Running requests and KV tokens, as published; rounded to thousands."""

SMALL = """\
version: 1
name: small
tag: "small-v1"
model: /models/small
arch: sm_120
patchsets: [chunked-state-copy]
serve:
  kv-cache-dtype: fp8_e4m3
  max-running-requests: 12
  speculative-algorithm: NEXTN
  speculative-num-draft-tokens: 6
  mamba-ssm-dtype: bfloat16
  enable-linear-replayssm-spec: true
  mamba-radix-cache-strategy: extra_buffer_lazy
  max-mamba-cache-size: 49
memory:
  model: qwen3.6-35b-a3b
  card: rtx-5090
  budget_mib: 5183
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "patchsets" / "chunked-state-copy").mkdir(parents=True)
    (tmp_path / "patchsets" / "sparse-verify").mkdir()
    (tmp_path / "recipes").mkdir()
    return tmp_path


def written(project, text=SMALL):
    path = project / "recipes" / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return recipes.load(path)


def explained(project, text=SMALL, **ask):
    return explain(written(project, text), project, Ask(**ask))


def codes(found):
    return [one.code for one in found.findings if one.severity != "note"]


def size(one, name):
    return next(term.size for term in one.terms if term.name == name)


def run(project, *words):
    main.load(["recipe"])
    return CliRunner().invoke(main.app, ["recipe", "explain", *words, "-C", str(project)])


# --- what was measured and published ------------------------------------------------------------


def test_sizes_are_those_that_sglangs_own_classes_gave():
    assert sizing.temporal_bytes(QWEN, ELSA) == 30 * MIB
    assert sizing.slot_bytes(QWEN, ELSA) == 32_931_840
    assert sizing.slot_bytes(QWEN, replace(ELSA, state_bytes=4)) / MIB == pytest.approx(
        61.406, 1e-4
    )
    assert sizing.ring_bytes(QWEN, ELSA) == 30 * 395_264
    assert sizing.cell_bytes(QWEN, ELSA) == 10_240
    assert sizing.cell_bytes(QWEN, replace(ELSA, draft_path=True)) == 11_264
    assert sizing.window_bytes(QWEN, ELSA) / MIB == 3.75
    assert sizing.verify_bytes(QWEN, ELSA, 12) / MIB == pytest.approx(136.4, abs=0.05)
    assert sizing.verify_bytes(QWEN, ELSA, 1) / MIB == pytest.approx(11.4, abs=0.05)


@pytest.mark.parametrize("spare", [0, 1])
def test_the_published_points_follow_from_the_first_one(spare):
    first = replace(ELSA, slots=32 + spare)
    budget = sizing.budget_of_point(QWEN, first, 32 + spare, SEEN[0][1])

    for requests, tokens in SEEN:
        one = sizing.resized(first, requests)
        found = sizing.tokens_in(QWEN, one, budget, one.slots)

        assert one.slots == 4 * requests + spare
        assert found == pytest.approx(tokens, rel=0.002)
    assert found == 298_824


def test_only_elsas_settings_give_what_four_requests_were_seen_to_cost():
    """56,000 tokens per four requests, figures rounded to a thousand: 14,000 +- 125 a request."""
    cells = [
        sizing.token_bytes(QWEN, replace(ELSA, kv_bytes=width), layers)
        for width, layers in product((1, 2), (10, 11, 40))
    ]
    fitting = []
    for state, replays, slots, draft, cell in product(
        (2, 4), (True, False), (0, 1, 3, 4, 5), (4, 5, 6), cells
    ):
        one = replace(ELSA, state_bytes=state)
        slot = sizing.slot_bytes(QWEN, one)
        spec = sizing.ring_bytes(QWEN, one) if replays else draft * slot
        if abs((slots * slot + spec) / cell - 14_000) <= 125:
            fitting.append((state, replays, slots, cell))

    assert set(fitting) == {(2, True, 4, 10_240)}


def test_the_recipe_of_elsa_agrees_with_what_was_seen_of_it():
    recipe = recipes.load(ROOT / "recipes" / "elsa-1.7.yaml")

    found = explain(recipe, ROOT, Ask(requests=tuple(n for n, _ in SEEN)))

    assert [one.serving.requests for one in found.ledgers] == [p.requests for p in found.points]
    for one, (_, tokens), point in zip(found.ledgers, SEEN, found.points, strict=True):
        assert point.kv_tokens == tokens
        assert one.tokens == pytest.approx(tokens, rel=0.002)
        assert one.admitted == point.requests
    assert codes(found) == []


def test_the_recipe_of_elsa_names_what_makes_twelve_requests_fit():
    recipe = recipes.load(ROOT / "recipes" / "elsa-1.7.yaml")

    serving = served.serving(recipe, QWEN)

    assert serving == replace(ELSA, requests=12, slots=49, multimodal_mib=100)


def test_the_temporary_of_a_copy_is_whole_layers_below_the_ceiling():
    def mib(path, states, ceiling=60):
        one = replace(ELSA, copy_path=path, copy_ceiling_mib=ceiling)
        return sizing.copy_bytes(QWEN, one, states) / MIB

    assert [mib(CopyPath.STOCK, n) for n in (1, 8, 12)] == [30, 240, 360]
    assert [mib(CopyPath.CHUNKED, n) for n in (1, 2, 8, 12, 16)] == [30, 60, 56, 60, 48]
    assert mib(CopyPath.DIRECT, 12) == 60
    assert mib(CopyPath.CHUNKED, 60) == 60
    assert mib(CopyPath.CHUNKED, 61) == 61
    assert mib(CopyPath.CHUNKED, 8, ceiling=1) == 8


@pytest.mark.parametrize(
    ("strategy", "overlap", "skip", "slots"),
    [
        ("no_buffer", False, False, 3),
        ("no_buffer", False, True, 3),
        ("extra_buffer", True, False, 5),
        ("extra_buffer", False, False, 4),
        ("extra_buffer", True, True, 4),
        ("extra_buffer_lazy", True, False, 4),
        ("extra_buffer_lazy", True, True, 3),
    ],
)
def test_each_strategy_holds_so_many_slots_a_request(strategy, overlap, skip, slots):
    one = replace(ELSA, strategy=Strategy(strategy), overlap=overlap, skip_decode_lock=skip)

    assert one.slots_per_request == slots
    assert replace(one, radix_cache=False).slots_per_request == 1


# --- the ledger ---------------------------------------------------------------------------------


def test_the_terms_of_the_budget_add_up_to_it():
    budget = Budget(size=5_183 * MIB, basis=Basis.GIVEN, how="here")

    one = ledger(QWEN, None, replace(ELSA, slots=33), budget)

    cell = sizing.cell_bytes(QWEN, ELSA)
    assert 0 <= budget.size - one.total(Part.BUDGET) < cell


def test_the_whole_card_is_accounted_for():
    card = geometry.card("rtx-5090")
    budget = Budget(size=5_183 * MIB, basis=Basis.GIVEN, how="here")

    one = ledger(QWEN, card, ELSA, budget)

    assert one.total(Part.BUDGET, Part.BESIDE, Part.UNPRICED) == card.memory_mib * MIB


def test_a_draft_in_the_budget_is_not_counted_beside_it_as_well():
    budget = Budget(size=5_183 * MIB, basis=Basis.GIVEN, how="here")

    apart = ledger(QWEN, None, ELSA, budget)
    within = ledger(QWEN, None, replace(ELSA, draft_path=True), budget)

    assert size(apart, "draft KV") / MIB == pytest.approx(1024 * apart.tokens / MIB)
    assert "draft KV" not in [term.name for term in within.terms]
    assert within.tokens == pytest.approx(apart.tokens * 10 / 11, rel=1e-4)


def test_the_smallest_of_upstreams_three_bounds_decides():
    budget = Budget(size=5_183 * MIB, basis=Basis.GIVEN, how="here")

    by_slots = ledger(QWEN, None, replace(ELSA, requests=12, slots=33), budget)
    by_tokens = ledger(QWEN, None, replace(ELSA, max_total_tokens=10), budget)
    by_wish = ledger(QWEN, None, replace(ELSA, slots=40), budget)

    assert (by_slots.tightest.name, by_slots.admitted) == ("slots", 8)
    assert (by_tokens.tightest.name, by_tokens.admitted) == ("tokens", 5)
    assert (by_wish.tightest.name, by_wish.admitted) == ("asked", 8)


def test_the_bound_of_a_full_conversation_is_the_last_that_holds_one():
    budget = Budget(size=5_183 * MIB, basis=Basis.GIVEN, how="here")
    start = replace(ELSA, slots=33)

    one = ledger(QWEN, None, start, budget)

    most = next(bound for bound in one.bounds if bound.name == "one full conversation").requests
    fits = [ledger(QWEN, None, sizing.resized(start, n), budget).tokens for n in (most, most + 1)]
    assert fits[0] >= ELSA.context > fits[1]


def test_without_a_budget_everything_but_tokens_is_told():
    one = ledger(QWEN, None, ELSA, None)

    assert one.tokens is None
    assert size(one, "recurrent state") == 33 * 30 * MIB
    assert size(one, "KV cache") is None
    assert one.admitted == 8


def test_plain_verify_keeps_a_whole_slot_a_draft_token():
    budget = Budget(size=20_000 * MIB, basis=Basis.GIVEN, how="here")

    one = ledger(QWEN, None, replace(ELSA, ring=None), budget)

    assert size(one, "verify states") == 9 * 6 * sizing.slot_bytes(QWEN, ELSA)
    assert "convolution windows" not in [term.name for term in one.terms]


def test_int8_checkpoints_are_priced_although_no_budget_has_them():
    budget = Budget(size=5_183 * MIB, basis=Basis.GIVEN, how="here")

    one = ledger(QWEN, None, replace(ELSA, int8_slots=0), budget)

    assert size(one, "int8 checkpoints") == 65 * sizing.int8_bytes(QWEN, ELSA)
    assert sizing.int8_bytes(QWEN, ELSA) < 0.53 * sizing.slot_bytes(QWEN, ELSA)


def test_a_pool_that_sglang_sizes_is_sized_from_the_budget():
    one = replace(ELSA, slots=None)

    fits, tight = (
        ledger(QWEN, None, one, Budget(size=mib * MIB, basis=Basis.GIVEN, how="here"))
        for mib in (5_183, 100)
    )

    share = 5_183 * 0.9 / 1.9 - 9 * sizing.ring_bytes(QWEN, one) / MIB
    assert fits.slots == int(share / 31.40625) - 1
    assert (tight.slots, tight.admitted, tight.tightest.name) == (0, 0, "slots")


def test_every_strategy_keeps_the_same_spare():
    found = dict(strategies(replace(ELSA, requests=12, slots=49)))

    spares = {one.slots - 12 * one.slots_per_request for one in found.values()}
    assert spares == {1}
    without = dict(strategies(replace(ELSA, strategy=Strategy.EXTRA_BUFFER, overlap=False)))
    assert without["extra_buffer"].slots_per_request == 4
    assert found["no_buffer"].slots == 37
    assert len(found) == 5


@given(
    budget=st.integers(1, 60_000),
    spare=st.integers(0, 3),
    requests=st.integers(1, 40),
    strategy=st.sampled_from(list(Strategy)),
    state=st.sampled_from([2, 4]),
    ring=st.sampled_from([None, 8, 16]),
    page=st.sampled_from([1, 16, 64]),
)
def test_another_request_never_leaves_more_tokens(
    budget, spare, requests, strategy, state, ring, page
):
    one = replace(ELSA, strategy=strategy, state_bytes=state, ring=ring, page=page)
    one = replace(one, slots=8 * one.slots_per_request + spare)

    tokens = [
        sizing.tokens_in(QWEN, sized, budget * MIB, sized.slots)
        for sized in (sizing.resized(one, requests), sizing.resized(one, requests + 1))
    ]

    assert tokens[1] < tokens[0]
    assert tokens[0] % page == 0


@given(tokens=st.integers(1, 10**7), fraction=st.floats(0.5, 0.99), before=st.integers(20, 140))
def test_a_budget_is_found_again_from_what_it_gave(tokens, fraction, before):
    budget = sizing.budget_of_point(QWEN, ELSA, 32, tokens)
    before <<= 30
    after = int(before * (1 - fraction)) + budget

    back = sizing.budget_of_load(ELSA, before=before, after=after, fraction=fraction)

    assert sizing.tokens_in(QWEN, ELSA, budget, 32) == tokens
    assert abs(back - budget) < 4096
    assert sizing.fraction_for(ELSA, before=before, after=after, budget=budget) == pytest.approx(
        fraction, abs=1e-6
    )


# --- from a recipe ------------------------------------------------------------------------------


def test_the_budget_comes_from_the_servers_log_when_the_fraction_is_known(project):
    text = SMALL.replace("serve:\n", 'serve:\n  mem-fraction-static: "0.80"\n')

    found = explained(project, text, load_gb=(31.2, 11.6))

    expected = 11.6 * 1024 - 31.2 * 1024 * 0.2 - 100
    assert found.budget.size / MIB == pytest.approx(expected, abs=0.1)
    assert found.budget.basis is Basis.MEASURED
    assert found.loaded.weights / MIB == pytest.approx(19.6 * 1024, abs=0.1)
    assert found.fraction is None


def test_the_fraction_is_told_when_only_the_budget_is_known(project):
    found = explained(project, load_gb=(31.2, 11.6))

    text = SMALL.replace("serve:\n", f"serve:\n  mem-fraction-static: {found.fraction:.6f}\n")
    again = explained(project, text, load_gb=(31.2, 11.6))
    assert again.budget.size / MIB == pytest.approx(5183, abs=0.1)


def test_weights_as_given_are_named_so(project):
    text = SMALL.replace("serve:\n", 'serve:\n  mem-fraction-static: "0.80"\n')

    found = explained(project, text, weights_mib=20_000)

    assert found.budget.size / MIB == pytest.approx(32_607 * 0.8 - 20_000 - 100, abs=1)
    weights = next(term for term in found.ledgers[0].terms if term.name == "weights")
    assert (weights.basis, weights.size) == (Basis.GIVEN, 20_000 * MIB)
    assert "CUDA context is not in it" in weights.how


def test_what_was_seen_is_not_carried_to_another_card(project):
    text = SMALL + "  points:\n    - requests: 8\n      kv_tokens: 411000\n"

    found = explained(project, text, card="h200")

    assert (found.budget, found.points) == (None, ())
    assert found.ledgers[0].tokens is None


def test_a_point_gives_the_budget_where_nothing_else_does(project):
    text = SMALL.replace("budget_mib: 5183", "points:\n    - {requests: 8, kv_tokens: 411000}")

    found = explained(project, text, requests=(8, 12, 16))

    assert [one.tokens for one in found.ledgers] == [411_000, 354_912, 298_824]
    assert "assumed" in found.budget.how


def test_a_checkpoints_own_config_gives_the_same_model(project):
    config = {
        "vision_config": {},
        "text_config": {
            "num_hidden_layers": 40,
            "full_attention_interval": 4,
            "linear_num_value_heads": 32,
            "linear_num_key_heads": 16,
            "linear_value_head_dim": 128,
            "linear_key_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "vocab_size": 248320,
            "max_position_embeddings": 262144,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "rope_parameters": {"partial_rotary_factor": 0.25},
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
        },
    }
    (project / "config.json").write_text(json.dumps(config))

    found = geometry.model("config.json", project)

    assert replace(found, name=QWEN.name) == QWEN
    del config["text_config"]["linear_num_value_heads"]
    (project / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"config\.json: linear_num_value_heads: must be a whole"):
        geometry.model("config.json", project)


# --- what it warns of ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("size: 49", "size: 48", "E540", "48 state slots are exactly 12 x 4: no spare"),
        ("size: 49", "size: 40", "E546", "12 requests need 48 state slots, 40 admit 10"),
        ("  mamba-ssm-dtype: bfloat16\n", "", "E541", "float32, ReplaySSM's own default"),
        ("chunked-state-copy", "sparse-verify", "E542", "copies its states through 360 MiB"),
        ("budget_mib: 5183", "budget_mib: 3000", "E544", "less than one conversation of 262,144"),
        ("budget_mib: 5183", "budget_mib: 900", "E546", "the states alone overdraw the budget"),
        (
            "memory:\n",
            'env:\n  SGLANG_SPEC_SPARSE_TOPK_VERIFY: "1"\nmemory:\n',
            "E543",
            "sparse-verify is not in the recipe",
        ),
        (
            "memory:\n",
            'env:\n  SGLANG_ENABLE_POST_CAPTURE_KV_SIZING: "1"\nmemory:\n',
            "E545",
            "after graph capture",
        ),
        ("serve:\n", "serve:\n  enable-unified-memory: true\n", "E545", "its split moves"),
        (
            "budget_mib: 5183",
            "budget_mib: 5183\n  points: [{requests: 8, kv_tokens: 420000}]",
            "E548",
            "8 requests: 420,000 tokens were seen, 410,973 are computed",
        ),
    ],
)
def test_what_a_person_should_look_at_is_a_warning(project, old, new, code, words):
    assert codes(explained(project)) == []
    assert old in SMALL

    found = explained(project, SMALL.replace(old, new))

    assert code in codes(found)
    assert any(words in one.message for one in found.findings if one.code == code)


def test_a_checkpoints_float32_is_named_as_its_own_default(project):
    text = SMALL.replace("  mamba-ssm-dtype: bfloat16\n", "")
    text = text.replace("  enable-linear-replayssm-spec: true\n", "")

    found = explained(project, text)

    assert any("the checkpoint's default" in one.message for one in found.findings)


def test_more_requests_than_the_copy_ceiling_covers_is_a_warning(project):
    found = explained(project, requests=(61,), weights_mib=1, card="h200")

    assert "E542" in codes(found)
    assert any("one layer of all states is 61 MiB" in one.message for one in found.findings)


def test_a_bfloat16_state_under_replay_asks_for_an_accuracy_check(project):
    notes = [one.message for one in explained(project).findings if one.severity == "note"]

    assert any("keep an accuracy check beside it" in text for text in notes)


def test_the_sparse_verify_is_priced_only_where_its_patchset_is(project):
    text = SMALL.replace("[chunked-state-copy]", "[chunked-state-copy, sparse-verify]")
    text = text.replace("memory:\n", 'env:\n  SGLANG_SPEC_SPARSE_TOPK_VERIFY: "true"\nmemory:\n')

    one = explained(project, text).ledgers[0]

    assert size(one, "verify, sparse") < MIB
    assert "verify, dense" not in [term.name for term in one.terms]


@pytest.mark.parametrize(
    ("value", "path", "mib"),
    [("0", CopyPath.STOCK, 60), ("30", CopyPath.CHUNKED, 30), ("-60", CopyPath.DIRECT, 60)],
)
def test_the_switch_of_the_copy_is_read_as_the_patch_reads_it(project, value, path, mib):
    text = SMALL.replace(
        "memory:\n", f'env:\n  SGLANG_MAMBA_SLOT_COPY_SCRATCH_MB: "{value}"\nmemory:\n'
    )

    assert served.copy_path(written(project, text)) == (path, mib)


# --- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("fp8_e4m3", "nvfp4", "serve.kv-cache-dtype: 'nvfp4' is not priced here"),
        ("requests: 12", "requests: twelve", "max-running-requests: 'twelve' must be a whole"),
        ("extra_buffer_lazy", "lazy", "'lazy' is none of auto, no_buffer"),
        ("bfloat16", "float8", "'float8' is none of float32, bfloat16"),
        ("serve:\n", "serve:\n  tp-size: 2\n", "serve.tp-size: a ledger is of one card"),
        ("  speculative-num-draft-tokens: 6\n", "", "speculative-num-draft-tokens: is missing"),
        ("rtx-5090", "rtx-5080", "no card 'rtx-5080' (did you mean 'rtx-5090'?)"),
        ("qwen3.6-35b-a3b", "qwen3.6-35b", "no model 'qwen3.6-35b' (did you mean"),
        (
            "serve:\n",
            'serve:\n  mem-fraction-static: "1.2"\n',
            "mem-fraction-static: '1.2' must be above 0, at most 1",
        ),
    ],
)
def test_what_cannot_be_priced_is_refused_by_name(project, old, new, words):
    with pytest.raises(ConfigError) as caught:
        explained(project, SMALL.replace(old, new))

    assert words in str(caught.value)


def test_a_recipe_that_says_no_number_asks_for_one(project):
    text = SMALL.replace("  max-running-requests: 12\n", "")

    with pytest.raises(UsageError, match="how many run") as caught:
        explained(project, text)

    assert caught.value.hint == "--slots 8,12,16"
    assert explained(project, text, requests=(8,)).ledgers[0].serving.requests == 8


def test_a_recipe_without_a_model_asks_for_one(project):
    with pytest.raises(UsageError, match=r"memory\.model: which model is it"):
        explained(project, SMALL.replace("  model: qwen3.6-35b-a3b\n", ""))


def test_everything_wrong_in_the_memory_section_is_told_at_once(project):
    text = SMALL + (
        "  load: {begin_gb: 31.2}\n"
        "  points:\n    - {requests: 0, kv_tokens: many}\n    - {requests: 8}\n"
        "  budgt: 1\n"
    )

    with pytest.raises(ConfigError) as caught:
        written(project, text)

    found = [line.partition(": ")[2] for line in str(caught.value).splitlines()]
    assert found == [
        "memory.load.begin_gb: 31.2 is a number to YAML; quote it",
        "memory.points[0].requests: 0 is less than 1",
        "memory.points[0].kv_tokens: must be a whole number, unquoted",
        "memory.points[1].kv_tokens: is missing",
        "memory.budgt: unknown field (did you mean 'budget_mib'?)",
    ]


# --- the command line ---------------------------------------------------------------------------


def test_the_page_names_every_term_and_what_is_not_known(project):
    written(project)

    ran = run(project)

    assert ran.exit_code == 0, ran.output
    for words in (
        "small: qwen3.6-35b-a3b on rtx-5090 (32,607 MiB)",
        "12 requests, 49 state slots, 354,885 tokens of KV",
        "recurrent state        1,500.0",
        "verify, dense            136.4",
        "weights                      ?  unknown: the server's log has it: --load",
        "requests that run at once: 12, by 'asked'",
        "one full conversation      18",
        "extra_buffer_lazy + SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK  3 a request",
    ):
        assert words in ran.stdout, words


def test_several_numbers_are_compared_line_by_line():
    ran = run(ROOT, "--slots", "8,12,16")

    rows = re.findall(r"^ +(\d+) +(\d+) +[\d,.]+ +([\d,]+) +([\d,]+) ", ran.stdout, re.MULTILINE)
    assert rows == [
        ("8", "33", "410,973", "411,000"),
        ("12", "49", "354,885", "355,000"),
        ("16", "65", "298,797", "299,000"),
    ]
    assert "825 MiB" in ran.stdout


def test_the_document_has_bytes_and_mib_of_every_term(project):
    written(project)

    ran = run(project, "--slots", "8,12", "--json")

    document = json.loads(ran.stdout)
    assert document["schema"] == "elsa-build/recipe-explain/1"
    first, second = document["data"]["ledgers"]
    terms = {term["name"]: term for term in second["terms"]}
    assert terms["ReplaySSM ring"]["bytes"] == 13 * 30 * 395_264
    assert terms["copy of states"]["mib"] == 60
    assert terms["weights"] == {
        "name": "weights",
        "part": "unpriced",
        "bytes": None,
        "mib": None,
        "how": "the server's log has it: --load",
        "basis": "unknown",
    }
    assert (first["tightest"], second["admitted"]) == ("asked", 12)
    assert len(document["data"]["strategies"]) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--slots", "8,,12"], "numbers above 0, joined by commas"),
        (["--slots", "0"], "numbers above 0, joined by commas"),
        (["--load", "31.2"], "two sizes in GB"),
        (["one", "--recipe", "two"], "two recipes are named: one and two"),
    ],
)
def test_a_wrong_option_is_a_question_of_usage(project, words, message):
    written(project)

    ran = run(project, *words, "--json")

    assert isinstance(ran.exception, UsageError)
    assert message in str(ran.exception)


def test_nothing_loaded_in_between_is_refused(project):
    with pytest.raises(ConfigError, match="nothing was loaded in between"):
        explained(project, load_gb=(8.0, 31.0))


# --- against the pinned release -----------------------------------------------------------------


def lifted(wheel: zipfile.ZipFile, path: str, names: set[str], scope: dict) -> dict:
    """Run some functions of a release's file, lifted out of it, with stand-ins for the rest."""
    tree = ast.parse(wheel.read(f"sglang/srt/{path}"))
    found = [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.FunctionDef) and node.name in names)
        or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) in names)
    ]
    for node in found:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
            node.returns = None
            for argument in (*node.args.args, *node.args.kwonlyargs):
                argument.annotation = None
    exec(compile(ast.Module(body=found, type_ignores=[]), path, "exec"), scope)
    return scope


class Upstream:
    """SGLang's own sizing of a server, with its context replaced by plain values."""

    def __init__(self, wheel: zipfile.ZipFile) -> None:
        self.serving = ELSA
        self.schedule = SimpleNamespace()
        scope = {
            "get_schedule": lambda: self.schedule,
            "get_context": lambda: SimpleNamespace(override=self.override),
            "get_memory": lambda: SimpleNamespace(disable_radix_cache=not self.serving.radix_cache),
            "get_exec": lambda: SimpleNamespace(mamba=self.mamba()),
            "get_spec": lambda: SimpleNamespace(
                speculative_num_draft_tokens=self.serving.draft_tokens
            ),
            "envs": SimpleNamespace(
                SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=SimpleNamespace(
                    get=lambda: self.serving.skip_decode_lock
                )
            ),
            "_pd_prefill_skips_mamba_spec_state": lambda: False,
            "np": SimpleNamespace(sum=sum, prod=math.prod),
            "torch": SimpleNamespace(float32="float32"),
        }
        self.scope = lifted(
            wheel,
            "mem_cache/kv_cache_configurator.py",
            {
                "_handle_max_mamba_cache",
                "_calculate_mamba_ratio",
                "MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO",
                "MAMBA_CACHE_BASE_RATIO_DROP_ON_SKIP",
                "MAMBA_CACHE_V2_ADDITIONAL_RATIO_NO_BUFFER",
            },
            scope,
        )
        lifted(wheel, "mem_cache/allocation_sizing.py", {"get_mamba_tracking_slots"}, scope)
        sizes = {"mamba_cache_per_req", "replayssm_ring_bytes_per_req"}
        lifted(wheel, "configs/mamba_utils.py", sizes, scope)

    def override(self, _: str, **values: int) -> None:
        vars(self.schedule).update(values)

    def mamba(self) -> SimpleNamespace:
        lazy = self.serving.strategy is Strategy.EXTRA_BUFFER_LAZY
        return SimpleNamespace(
            enable_linear_replayssm_spec=self.serving.ring is not None,
            linear_replayssm_cache_len=self.serving.ring,
            enable_mamba_extra_buffer=lazy or self.serving.strategy is Strategy.EXTRA_BUFFER,
            enable_mamba_extra_buffer_lazy=lazy,
        )

    def sized(self, serving: Serving, budget: int) -> tuple[int, int]:
        """Return K and what is left of a budget for tokens, bytes."""
        self.serving = serving
        self.schedule = SimpleNamespace(
            max_running_requests=serving.requests,
            max_mamba_cache_size=serving.slots,
            mamba_full_memory_ratio=serving.mamba_ratio,
            disable_overlap_schedule=not serving.overlap,
        )
        shape = SimpleNamespace(
            conv=[(QWEN.conv_dim, QWEN.conv_kernel - 1)],
            temporal=(QWEN.value_heads, QWEN.value_dim, QWEN.key_dim),
            num_k_heads_per_tp=QWEN.key_heads,
        )
        dtype = SimpleNamespace(
            conv=SimpleNamespace(itemsize=serving.conv_bytes),
            temporal=SimpleNamespace(itemsize=serving.state_bytes),
        )
        params = SimpleNamespace(
            shape=shape, dtype=dtype, is_kda=False, layers=range(QWEN.linear_layers)
        )
        params.mamba_cache_per_req = self.scope["mamba_cache_per_req"](params)
        params.replayssm_ring_bytes_per_req = lambda record_len: self.scope[
            "replayssm_ring_bytes_per_req"
        ](params, record_len)
        own = SimpleNamespace(
            mambaish_config=SimpleNamespace(mamba2_cache_params=params),
            pp_size=1,
            fused_entry_bytes=lambda _: None,
            spec_algorithm=SimpleNamespace(is_none=lambda: not serving.draft_tokens),
            hybrid_gdn_config=True,
            hybrid_kda_config=None,
            attn_dp_size=1,
            extra_mamba_cache_bytes_per_req=0,
        )
        own._calculate_mamba_ratio = lambda: self.scope["_calculate_mamba_ratio"](own)
        left = self.scope["_handle_max_mamba_cache"](own, budget / (1 << 30))
        return self.schedule.max_mamba_cache_size, int(left * (1 << 30))


@pytest.mark.wheel
def test_states_and_slots_are_sized_as_the_pinned_release_sizes_them(tmp_path):
    _, path, _ = release.fetch(tmp_path)
    with zipfile.ZipFile(path) as wheel:
        upstream = Upstream(wheel)
    compared = 0

    for strategy, skip, state, ring, draft, radix, slots, requests, gib in product(
        Strategy, (False, True), (2, 4), (None, 8, 16), (0, 4, 6), (True, False), (None, 30, 49),
        (1, 8, 12), (5, 24, 100),
    ):  # fmt: skip
        serving = replace(
            ELSA, strategy=strategy, skip_decode_lock=skip, state_bytes=state, ring=ring,
            draft_tokens=draft, radix_cache=radix, slots=slots, requests=requests,
            overlap=strategy is not Strategy.NO_BUFFER,
        )  # fmt: skip
        own = slots
        if own is None:
            own = sizing.sized_slots(QWEN, serving, gib << 30)
        if own <= 0:
            with pytest.raises(RuntimeError, match="Not enough GPU memory"):
                upstream.sized(serving, gib << 30)
            continue
        expected, left = upstream.sized(serving, gib << 30)

        assert own == expected, serving
        assert left == pytest.approx(
            (gib << 30) - sum(sizing.state_parts(QWEN, serving, own)), abs=8
        )
        compared += 1

    assert compared > 2500
