"""The drives of requests, speculation, sampling and experts, over the patched tree."""

import pytest

SERVING = (
    "vision",
    "experts",
    "grammar-mask",
    "graphs",
    "prefills",
    "rounds",
    "sampling-choices",
    "sparse-verify",
)


class Found:
    """What was planned, to be asked by a kernel's own name."""

    def __init__(self, answer):
        self.failures = answer["failures"]
        self.entries = answer["kernels"]

    def of(self, kernel):
        return [one for one in self.entries if one["name"].endswith(f":{kernel}")]

    def phases(self, kernel):
        return {phase for one in self.of(kernel) for phase in one["phases"]}

    def constants(self, kernel, *names):
        """Return the values of constexprs, by specialisation."""
        found = set()
        for one in self.of(kernel):
            spec = one["spec"]
            arguments = list(spec["signature"])
            pairs = zip(spec["constant_keys"], spec["constant_vals"], strict=True)
            given = {arguments[key[0]]: value for key, value in pairs if len(key) == 1}
            found.add(tuple(given[name] for name in names))
        return found


@pytest.fixture
def serving(planned):
    return Found(planned("sm_120", *SERVING))


pytestmark = [pytest.mark.kernels, pytest.mark.slow]


def test_every_drive_of_the_serving_path_runs_to_its_end(serving):
    assert serving.failures == {}


def test_no_entry_holds_what_belongs_to_one_machine(serving):
    for one in serving.entries:
        assert "target" not in one["spec"]
        assert not {"arch", "extern_libs"} & set(one["spec"]["options"])
        assert one["phases"]
        assert ": srt/" in one["why"]


# From the prompt to the first draft.


def test_a_prefill_writes_its_tokens_rows_and_positions(serving):
    for kernel in ("write_req_to_token_pool_triton", "compute_position_kernel"):
        assert "prefill" in serving.phases(kernel)


def test_attention_is_driven_with_the_axes_of_images_for_the_model_and_without_for_the_draft(
    serving,
):
    found = serving.constants(
        "_fused_qk_rmsnorm_rope_gate_kernel", "MROPE", "NUM_Q_HEADS", "NUM_KV_HEADS"
    )

    assert found == {(True, 16, 2), (False, 16, 2)}


def test_the_vision_tower_takes_triton_on_this_card(serving):
    assert serving.of("_fwd_kernel")


# Drafts and their verification.


def test_indices_of_drafts_are_planned_for_every_size_of_batch_short_and_long(serving):
    found = serving.constants("generate_draft_decode_kv_indices", "bs_upper", "NUM_STEPS")

    assert found == {(size, steps) for size in (1, 2, 4, 8, 16) for steps in (0, 5)}


def test_the_greedy_draft_of_one_chain_is_planned(serving):
    assert serving.of("_draft_topk1_partial_argmax_kernel")
    assert serving.of("_draft_topk1_finalize_kernel")


def test_what_a_verification_accepts_is_committed(serving):
    assert serving.phases("_verify_commit_outputs_kernel") == {"verify"}
    assert serving.constants("_verify_commit_outputs_kernel", "DRAFT_WIDTH") == {(6,)}


def test_graphs_are_captured_and_replayed(serving):
    assert {"draft", "prefill", "verify"} <= serving.phases("_small_copy_kernel")


def test_sparse_verification_is_planned_in_the_three_sizes_of_its_second_kernel(serving):
    found = serving.constants("_verify_rows_kernel", "BINS", "SLOTS", "KEPT")

    assert found == {(128, 32, 64), (128, 64, 128), (256, 128, 256)}
    assert serving.constants("_block_maxima_kernel", "VOCAB") == {(248_320,)}


# Sampling and experts.


def test_the_mask_of_a_grammar_is_planned_for_every_kind_of_row_count(serving):
    rows = {
        one["spec"]["signature"]["num_rows"]
        for one in serving.of("apply_token_bitmask_inplace_kernel")
    }

    assert rows == {"constexpr", "i32"}
    assert len(serving.of("apply_token_bitmask_inplace_kernel")) == 3


def test_experts_are_routed_and_joined_by_triton_but_not_computed_by_it(serving):
    assert serving.of("_router_triton_kernel")
    assert serving.of("_fused_gate_sigmoid_mul_add_kernel")
    assert not serving.of("fused_moe_kernel")
