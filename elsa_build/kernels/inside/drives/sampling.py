"""Grammars: tokens that a tool call or a schema forbids are masked before a token is picked."""

from collections.abc import Iterator

from elsa_build.kernels.inside.drives.served import Drive, Served


def _grammar(model: Served) -> Iterator[str]:
    """Drive the mask over the logits of a prefill (a row a request) and of a verification."""
    import torch
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammar, get_bitmask_shape

    yield "sampling"
    counts = {
        requests * tokens for requests in model.batches() for tokens in (1, model.draft_tokens)
    }
    logits = torch.zeros(max(counts), model.vocabulary)
    mask = torch.zeros(get_bitmask_shape(max(counts), model.vocabulary), dtype=torch.int32)
    for rows in sorted(counts):
        XGrammarGrammar.apply_vocab_mask(None, logits[:rows], mask[:rows])


DRIVES = (Drive(name="grammar-mask", source="srt/constrained/xgrammar_backend.py", run=_grammar),)
