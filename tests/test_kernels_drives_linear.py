"""The drives of linear attention, causal convolution and state slots, over the patched tree."""

import pytest

from elsa_build.kernels.inside.drives.gdn import prompts
from elsa_build.kernels.inside.drives.served import served
from elsa_build.kernels.inside.drives.server import command_line, config
from tests import kerneling

LINEAR = (
    "gdn-prefill",
    "gdn-decode",
    "gdn-verify",
    "state-slots",
    "state-direct-copy",
    "state-commit",
)


class Found:
    """What was planned, to be asked by a kernel's own name."""

    def __init__(self, answer):
        self.failures = answer["failures"]
        self.tunings = answer["tunings"]
        self.entries = answer["kernels"]

    def of(self, kernel):
        return [one["spec"] for one in self.entries if one["name"].endswith(f":{kernel}")]

    def phases(self, kernel):
        entries = (one for one in self.entries if one["name"].endswith(f":{kernel}"))
        return {phase for one in entries for phase in one["phases"]}

    def constants(self, kernel, argument):
        """Return the values of a constexpr over the specialisations."""
        return {constants(spec)[argument] for spec in self.of(kernel)}

    def types(self, kernel, argument):
        return {spec["signature"][argument] for spec in self.of(kernel)}


def constants(spec):
    names = list(spec["signature"])
    pairs = zip(spec["constant_keys"], spec["constant_vals"], strict=True)
    return {names[place]: value for (place,), value in pairs}


@pytest.fixture
def linear(planned):
    return Found(planned("sm_120", *LINEAR))


def elsa(**serve):
    asked = kerneling.request("sm_120")
    return served(asked["geometry"], asked["serve"] | serve)


# What upstream is told.


def test_a_command_line_has_switches_without_values_and_nothing_for_people():
    flags = [
        ("enable-linear-replayssm-spec", "true"),
        ("enable-metrics", "false"),
        ("max-mamba-cache-size", "49"),
        ("tool-call-parser", "auto"),
    ]

    said = command_line(elsa(flags=flags))

    assert said == ["--enable-linear-replayssm-spec", "--max-mamba-cache-size", "49"]


def test_without_a_command_line_the_same_facts_are_told_as_flags():
    said = command_line(elsa(draft_tokens=1, replay=False))

    assert said[said.index("--max-mamba-cache-size") + 1] == "49"
    assert not [text for text in said if text.startswith("--speculative")]
    assert "--enable-linear-replayssm-spec" not in said


def test_the_config_has_an_attention_layer_after_every_three_linear_ones():
    text = config(elsa())["text_config"]

    assert (text["num_hidden_layers"], text["full_attention_interval"]) == (40, 4)


def test_prompts_have_every_power_of_two_and_its_neighbour_and_a_ragged_batch():
    *alone, pair, ragged = prompts(elsa(), most=8)

    assert alone == [[1], [2], [3], [4], [5], [8], [9]]
    assert len(pair) == 2
    assert len(ragged) == 12
    assert max(ragged) > 8 * min(ragged)


# What upstream then compiles.


@pytest.mark.kernels
@pytest.mark.slow
def test_no_drive_fails_and_each_phase_has_kernels(linear):
    assert linear.failures == {}
    phases = {phase for one in linear.entries for phase in one["phases"]}
    assert phases == {"memory", "prefill", "decode", "verify"}


@pytest.mark.kernels
@pytest.mark.slow
def test_prefill_has_the_convolution_for_even_and_for_ragged_batches(linear):
    kernel = "_causal_conv1d_fwd_kernel"

    assert linear.phases(kernel) == {"prefill"}
    assert linear.constants(kernel, "USE_BLOCK_TABLE") == {True, False}
    assert linear.constants(kernel, "num_cache_lines") == {50}  # 49 slots and one of padding


@pytest.mark.kernels
@pytest.mark.slow
def test_every_configuration_that_a_tuner_may_choose_is_planned(linear):
    kernel = "chunk_gated_delta_rule_fwd_kkt_solve_kernel"

    choices = [one for one in linear.tunings if one["name"].endswith(kernel)]

    assert len(choices) == 1
    assert len(linear.of(kernel)) == len(choices[0]["spec"]["configs"]) == 6


@pytest.mark.kernels
@pytest.mark.slow
def test_the_gated_norm_has_every_row_count_that_a_token_count_leads_to(linear):
    kernel = "_layer_norm_fwd_1pass_kernel"

    assert linear.constants(kernel, "ROWS_PER_BLOCK") == {1, 2, 4}
    assert linear.phases(kernel) == {"prefill", "decode", "verify"}


@pytest.mark.kernels
@pytest.mark.slow
def test_verification_is_planned_for_six_drafts(linear):
    kernel = "gdn_replayssm_spec_circular_kernel"

    assert linear.phases(kernel) == {"verify"}
    assert linear.constants(kernel, "STATE_FP32") == {False}
    convolution = linear.of("_causal_conv1d_update_kernel")
    assert {constants(spec)["seqlen"] for spec in convolution} == {6}
    assert {constants(spec)["SAVE_INTERMEDIATE"] for spec in convolution} == {True}


@pytest.mark.kernels
@pytest.mark.slow
def test_the_commit_after_verification_is_planned_for_every_number_of_requests(linear):
    cursors = "_advance_gdn_spec_cursors_kernel"
    commit = "gdn_replayssm_compact_commit_kernel"

    assert linear.constants(cursors, "MAX_SPEC_LEN") == {6}
    assert linear.constants(cursors, "BLOCK") == {1, 2, 4, 8, 16}
    assert linear.constants(commit, "HAS_TRACK") == {True}
    assert linear.constants("_fused_replay_state_indices_kernel", "BS_UPPER") == {1, 2, 4, 8, 16}


@pytest.mark.kernels
@pytest.mark.slow
def test_the_direct_copy_of_our_patch_is_planned_for_both_types_of_slot_ids(linear):
    kernel = "_copy_slots_kernel"

    assert linear.phases(kernel) == {"memory"}
    assert linear.types(kernel, "src") == {"*i32", "*i64"}
    assert linear.constants(kernel, "WORD") == {"int64"}
    assert linear.phases("_fused_slot_copy_kernel") == {"memory"}
    assert linear.phases("_fused_slot_clear_kernel") == {"memory"}


@pytest.mark.kernels
@pytest.mark.slow
def test_without_replayssm_verification_takes_the_recurrent_kernel(planned):
    plain = Found(planned("sm_120", "gdn-verify", "state-commit", replay=False))

    assert plain.failures == {}
    assert plain.of("fused_sigmoid_gating_delta_rule_update_kernel")
    assert plain.of("_fused_mamba_state_scatter_with_mask_kernel")
    assert not plain.of("gdn_replayssm_spec_circular_kernel")
