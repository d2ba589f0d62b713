"""Which upstream commits matter: by what their title says and which shipped files they touch.

The defaults are for a hybrid Mamba and attention model in NVFP4 with speculative decoding on one
Blackwell card; a recipe's `nightly` section replaces any of the three lists.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from elsa_build.model import Interest
from elsa_build.patches.history import UpstreamCommit

DEFAULT = Interest(
    keywords=(
        "mamba",
        "gdn",
        "gated_delta",
        "linear_attn",
        "replayssm",
        "qwen3_5",
        "qwen3_next",
        "eagle",
        "mtp",
        "speculative",
        "radix",
        "hicache",
        "unified_cache",
        "cuda_graph",
        "sm120",
        "nvfp4",
        "modelopt",
    ),
    paths=(
        "python/sglang/srt/models/qwen3_5*",
        "python/sglang/srt/layers/attention/fla/*",
        "python/sglang/srt/layers/attention/linear/*",
        "python/sglang/srt/layers/attention/mamba/*",
    ),
    without=(
        "amd",
        "rocm",
        "hip",
        "npu",
        "ascend",
        "xpu",
        "musa",
        "mlx",
        "diffusion",
        "docs",
        "[cpu]",
        "python/sglang/srt/hardware_backend/*",
        "python/sglang/multimodal_gen/*",
        "python/sglang/test/*",
        "benchmark/*",
        "scripts/*",
        "test/*",
        "docs/*",
        "docs_new/*",
        ".github/*",
    ),
)
"""What counts when a recipe does not say."""


def filled(interest: Interest) -> Interest:
    """Return an interest with the defaults where it says nothing."""
    return Interest(
        keywords=interest.keywords or DEFAULT.keywords,
        paths=interest.paths or DEFAULT.paths,
        without=interest.without or DEFAULT.without,
    )


def reasons(
    commit: UpstreamCommit, interest: Interest, hot: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return why a commit matters, a few words each; nothing when it does not.

    Args:
        commit: With its changes.
        interest: See `filled`.
        hot: The files that patches of ours touch, and which patches.
    """
    words = [word for word in interest.without if "/" not in word]
    if any(_said(word, commit.subject) for word in words):
        return ()
    gone = [glob for glob in interest.without if "/" in glob]
    paths = [c.path for c in commit.changes if not _matches(c.path, gone)]
    if not paths:
        return ()
    shown = _plain(commit.subject)
    found = [f"title: {word}" for word in interest.keywords if _plain(word) in shown]
    for word in interest.keywords:
        first = next((path for path in paths if _plain(word) in _plain(path)), None)
        if first:
            found.append(f"file: {word} ({first})")
    found += [f"path: {path}" for path in paths if _matches(path, interest.paths)]
    found += [f"ours: {path} ({', '.join(hot[path])})" for path in paths if path in hot]
    return tuple(found)


def _matches(path: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(path, glob) for glob in globs)


def _plain(text: str) -> str:
    """Return a text so that `Qwen3.5`, `qwen3_5` and `qwen3-5` are one word."""
    return re.sub(r"[-. ]", "_", text.casefold())


def _said(word: str, title: str) -> bool:
    """Say whether a title has a word as such, not as a part of another."""
    before = r"(?<![^\W_])" if word[:1].isalnum() else ""
    after = r"(?![^\W_])" if word[-1:].isalnum() else ""
    return re.search(before + re.escape(word) + after, title, re.IGNORECASE) is not None
