"""Grammars: tokens that a tool call or a schema forbids are masked before a token is picked."""

from collections.abc import Iterator

from elsa_build.kernels.inside.drives.served import Drive, Served


def _grammar(model: Served) -> Iterator[str]:
    """Drive the mask over the logits of a prefill (a row a request) and of a verification."""
    import torch
    from sglang.kernels.ops.grammar.bitmask_ops import apply_token_bitmask_inplace_triton

    yield "sampling"
    counts = {
        requests * tokens for requests in model.batches() for tokens in (1, model.draft_tokens)
    }
    logits = torch.zeros(max(counts), model.vocabulary)
    mask = torch.zeros(max(counts), -(-model.vocabulary // 32), dtype=torch.int32)
    for rows in sorted(counts):
        apply_token_bitmask_inplace_triton(logits[:rows], mask[:rows])


DRIVES = (Drive(name="grammar-mask", source="srt/constrained/xgrammar_backend.py", run=_grammar),)
