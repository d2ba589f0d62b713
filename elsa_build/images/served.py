"""What a recipe's flags and switches mean for memory, as SGLang 0.5.23 reads them.

Only what decides sizes is read. What the arithmetic does not cover is refused or named, since a
ledger that is silently wrong is worse than none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError, UsageError
from elsa_build.images.geometry import STATE_BYTES
from elsa_build.images.sizing import CopyPath, Geometry, Serving, Strategy, temporal_bytes
from elsa_build.model import Recipe

COPY_PATCHSET = "chunked-state-copy"
COPY_SWITCH = "SGLANG_MAMBA_SLOT_COPY_SCRATCH_MB"
COPY_CEILING_MIB = 60
VERIFY_PATCHSET = "sparse-verify"
VERIFY_SWITCH = "SGLANG_SPEC_SPARSE_TOPK_VERIFY"

_KV_BYTES = {"auto": 2, "bf16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
_ONE_CARD = (
    "tp-size",
    "tensor-parallel-size",
    "pp-size",
    "pipeline-parallel-size",
    "dp-size",
    "data-parallel-size",
)
_NOT_COVERED = {
    "enable-unified-memory": "one buffer holds states and tokens, and its split moves",
    "enable-kv-cache-sharding": "it reserves a buffer of its own",
}
_YES = ("1", "true", "yes", "y")


@dataclass(frozen=True, slots=True)
class Flags:
    """A recipe's server arguments and environment, read by name."""

    recipe: Recipe
    given: Mapping[str, str | None]
    env: Mapping[str, str]

    @staticmethod
    def of(recipe: Recipe) -> "Flags":
        """Return the flags of a recipe."""
        return Flags(recipe, dict(recipe.flags), dict(recipe.env))

    def on(self, name: str) -> bool:
        """Say whether a switch is given."""
        return name in self.given

    def text(self, name: str, default: str) -> str:
        """Return a flag's value."""
        return self.given.get(name) or default

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a flag that is a whole number.

        Raises:
            ConfigError: It is something else (exit 5).
        """
        found = self.given.get(name)
        if found is None:
            return default
        return _whole(found, f"{self.place}: serve.{name}")

    def variable(self, name: str, default: int) -> int:
        """Return a variable that is a whole number."""
        found = self.env.get(name)
        return default if found is None else _whole(found, f"{self.place}: env.{name}")

    def truth(self, name: str) -> bool:
        """Say whether a variable is set to something that means yes."""
        return self.env.get(name, "").lower() in _YES

    @property
    def place(self) -> str:
        """Return the recipe's file as messages name it."""
        return f"recipes/{self.recipe.path.name}"


def serving(recipe: Recipe, model: Geometry, requests: int | None = None) -> Serving:
    """Return what a recipe's server does with memory; `requests` replaces an absent number.

    Raises:
        ConfigError: A value that is no number, a type that is not priced, more than one card, or
            speculation without its number of draft tokens (exit 5).
        UsageError: Nothing says how many requests run (exit 2).
    """
    flags = Flags.of(recipe)
    for name in _ONE_CARD:
        if (flags.number(name, 1) or 1) > 1:
            raise ConfigError(f"{flags.place}: serve.{name}: a ledger is of one card")
    asked = flags.number("max-running-requests", requests)
    if asked is None:
        raise UsageError(
            f"{flags.place}: no max-running-requests: how many run?", hint="--slots 8,12,16"
        )
    path, ceiling = copy_path(recipe)
    spec = flags.on("speculative-algorithm")
    draft = flags.number("speculative-num-draft-tokens")
    if spec and draft is None:
        raise ConfigError(
            f"{flags.place}: serve.speculative-num-draft-tokens: is missing; SGLang's own guess "
            "is not priced"
        )
    return Serving(
        requests=asked,
        slots=flags.number("max-mamba-cache-size"),
        context=flags.number("context-length", model.context) or model.context,
        strategy=strategy(flags),
        radix_cache=not flags.on("disable-radix-cache"),
        skip_decode_lock=flags.truth("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"),
        overlap=not flags.on("disable-overlap-schedule"),
        state_bytes=STATE_BYTES[state_dtype(flags, model)],
        conv_bytes=STATE_BYTES[_dtype(flags, flags.env.get("SGLANG_MAMBA_CONV_DTYPE", "bfloat16"))],
        kv_bytes=_kv_bytes(flags),
        ring=flags.number("linear-replayssm-cache-len", 16) if replay(flags) else None,
        draft_tokens=(draft or 0) if spec else 0,
        draft_path=flags.on("speculative-draft-model-path"),
        tree=(flags.number("speculative-eagle-topk", 1) or 1) > 1,
        page=flags.number("page-size", 1) or 1,
        mamba_ratio=_share(flags, "mamba-full-memory-ratio", 0.9, 100.0),
        max_total_tokens=flags.number("max-total-tokens"),
        copy_path=path,
        copy_ceiling_mib=ceiling,
        sparse_verify=flags.truth(VERIFY_SWITCH) and VERIFY_PATCHSET in recipe.patchsets,
        int8_slots=(
            flags.number("int8-mamba-ckpt-size", 0)
            if flags.on("enable-int8-mamba-checkpoint")
            else None
        ),
        multimodal_mib=_multimodal_mib(flags) if model.multimodal else 0,
    )


def replay(flags: Flags) -> bool:
    """Say whether a verify replays recorded inputs instead of keeping a state a draft token."""
    return flags.on("enable-linear-replayssm-spec")


def strategy(flags: Flags) -> Strategy:
    """Return the slot strategy; `auto` is the extra buffer wherever the overlap schedule runs."""
    found = flags.text("mamba-radix-cache-strategy", "auto")
    if found == "auto":
        overlap = (
            not flags.on("disable-overlap-schedule") or (flags.number("page-size", 1) or 1) > 1
        )
        return Strategy.EXTRA_BUFFER if overlap else Strategy.NO_BUFFER
    if found not in list(Strategy):
        raise ConfigError(
            f"{flags.place}: serve.mamba-radix-cache-strategy: '{found}' is none of auto, "
            f"{', '.join(Strategy)}"
        )
    return Strategy(found)


def state_dtype(flags: Flags, model: Geometry) -> str:
    """Return the type of the recurrent state: named, else ReplaySSM's own, else the checkpoint's.

    Source: sglang v0.5.23 srt/arg_groups/attention_hook.py, srt/configs/mamba_utils.py.
    """
    named = flags.given.get("mamba-ssm-dtype") or flags.env.get("SGLANG_MAMBA_SSM_DTYPE")
    if named is None and replay(flags):
        return "float32"
    return _dtype(flags, named or model.state_dtype)


def copy_path(recipe: Recipe) -> tuple[CopyPath, int]:
    """Return how states are copied and the ceiling of the parts, MiB."""
    if COPY_PATCHSET not in recipe.patchsets:
        return CopyPath.STOCK, COPY_CEILING_MIB
    mib = Flags.of(recipe).variable(COPY_SWITCH, COPY_CEILING_MIB)
    if mib == 0:
        return CopyPath.STOCK, COPY_CEILING_MIB
    return (CopyPath.CHUNKED if mib > 0 else CopyPath.DIRECT), abs(mib)


def mem_fraction(recipe: Recipe) -> float | None:
    """Return `--mem-fraction-static`, None when SGLang guesses it."""
    flags = Flags.of(recipe)
    if "mem-fraction-static" not in flags.given:
        return None
    return _share(flags, "mem-fraction-static", 0.0, 1.0)


def findings(recipe: Recipe, model: Geometry, found: Serving) -> Iterator[Diagnostic]:
    """Yield what a person should look at in a recipe's settings, whatever the card."""
    flags = Flags.of(recipe)
    named = flags.given.get("mamba-ssm-dtype") or flags.env.get("SGLANG_MAMBA_SSM_DTYPE")
    dtype = state_dtype(flags, model)
    if named is None and STATE_BYTES[dtype] > 2:
        who = "ReplaySSM's own default" if replay(flags) else "the checkpoint's default"
        yield _warning(
            flags,
            "E541",
            f"the state is {dtype}, {who}: a slot is twice as large as in bfloat16",
            "mamba-ssm-dtype: bfloat16, with an accuracy check beside it",
        )
    elif replay(flags) and STATE_BYTES[dtype] == 2:
        text = f"ReplaySSM on a {dtype} state: SGLang only warns; keep an accuracy check beside it"
        yield _note(flags, "E541", text)
    if found.copy_path is CopyPath.STOCK:
        state = temporal_bytes(model, found) * found.requests / (1 << 20)
        yield _warning(
            flags,
            "E542",
            f"a burst of {found.requests} prefix hits copies its states through {state:,.0f} MiB",
            f"add {COPY_PATCHSET} to patchsets, {COPY_SWITCH} not 0",
        )
    for switch, patchset in ((COPY_SWITCH, COPY_PATCHSET), (VERIFY_SWITCH, VERIFY_PATCHSET)):
        if switch in flags.env and patchset not in recipe.patchsets:
            text = f"{switch} is set, but nothing reads it: {patchset} is not in the recipe"
            yield _warning(flags, "E543", text, f"add {patchset} to patchsets")
    for name, why in _NOT_COVERED.items():
        if flags.on(name):
            yield _warning(flags, "E545", f"--{name} is not covered by this arithmetic: {why}")
    if flags.truth("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING"):
        text = "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING sizes the cache again after graph capture"
        yield _warning(flags, "E545", f"{text}: this arithmetic does not cover it")
    if mem_fraction(recipe) is None:
        text = "mem-fraction-static is not given: SGLang guesses it from the card and the graphs"
        yield _note(flags, "E547", text)


def _kv_bytes(flags: Flags) -> int:
    named = flags.text("kv-cache-dtype", "auto")
    if named not in _KV_BYTES:
        raise ConfigError(
            f"{flags.place}: serve.kv-cache-dtype: '{named}' is not priced here, only "
            f"{', '.join(_KV_BYTES)}"
        )
    return _KV_BYTES[named]


def _multimodal_mib(flags: Flags) -> int:
    """Return what SGLang holds back for images: a cache, and a pool for transport between cards."""
    cache = flags.variable("SGLANG_VLM_CACHE_SIZE_MB", 100)
    if flags.text("mm-feature-transport", "cpu") in ("cuda_ipc", "cuda_vmm"):
        cache += flags.variable("SGLANG_MM_FEATURE_CACHE_MB", 1024)
    return cache


def _dtype(flags: Flags, name: str) -> str:
    if name not in STATE_BYTES:
        raise ConfigError(f"{flags.place}: '{name}' is none of {', '.join(STATE_BYTES)}")
    return name


def _share(flags: Flags, name: str, default: float, most: float) -> float:
    text = flags.given.get(name)
    if text is None:
        return default
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 < found <= most:
        raise ConfigError(
            f"{flags.place}: serve.{name}: '{text}' must be above 0, at most {most:g}"
        )
    return found


def _whole(text: str, place: str) -> int:
    try:
        return int(text)
    except ValueError as e:
        raise ConfigError(f"{place}: '{text}' must be a whole number") from e


def _warning(flags: Flags, code: str, message: str, hint: str | None = None) -> Diagnostic:
    return Diagnostic(
        code=code, severity=Severity.WARNING, message=message, path=flags.place, hint=hint
    )


def _note(flags: Flags, code: str, message: str) -> Diagnostic:
    return Diagnostic(code=code, severity=Severity.NOTE, message=message, path=flags.place)
