"""The nouns that every room shares, as frozen values without behaviour.

A value that only one room uses lives in that room. Paths inside git are `str` with `/`; paths on
disk are `Path`. An `Oid` is a full object id, 40 lower-case hex digits.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NewType

from elsa_build.diagnostics import Diagnostic, Severity, errors

Oid = NewType("Oid", str)
Digest = NewType("Digest", str)
"""`sha256:` and 64 hex digits, as OCI writes it."""


# --- upstream ---------------------------------------------------------------------------------


class SourceKind(StrEnum):
    """Where upstream's tree comes from (DESIGN: two sources, one interface)."""

    GIT = "git"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file of a published release; `sha256` is bare hex."""

    filename: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What upstream is, exactly. `ref` is what a person asked for, `commit` what it was.

    `url` is the git address or the package name; `date` is ISO 8601 with an offset; `artifacts`
    are the release's files (none for git); `requires` is what this upstream needs, as PEP 508
    lines from its own metadata.
    """

    source: SourceKind
    url: str
    ref: str
    commit: Oid
    tree: Oid
    date: str
    artifacts: tuple[Artifact, ...] = ()
    requires: tuple[str, ...] = ()


# --- patches ----------------------------------------------------------------------------------


class Kind(StrEnum):
    """How a patch relates to upstream."""

    HAND_PORT = "hand-port"
    CHERRY_PICK = "cherry-pick"
    LOCAL = "local"


class Status(StrEnum):
    """Where a patch stands with us. Only `candidate` and `kept` are replayed."""

    CANDIDATE = "candidate"
    KEPT = "kept"
    DROPPED = "dropped"
    ABSORBED = "absorbed"


class Outcome(StrEnum):
    """What became of one patch in a replay."""

    CLEAN = "clean"
    PROPOSED = "proposed"
    CONFLICT = "conflict"
    ABSORBED = "absorbed"
    PARTIAL = "partial"
    EMPTY = "empty"
    BLOCKED = "blocked"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a patch comes from upstream: a commit, a pull request number, or neither."""

    commit: Oid | None = None
    pr: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Who wrote a commit and when; `date` is git's raw form, `<seconds> <+hhmm>`."""

    name: str
    email: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """A patch file, parsed: a git format-patch mail.

    `message` is the whole commit message (subject, blank line, body, trailers; LF, no final
    newline); `diff` is the exact bytes from the first `diff --git` line to the end.
    """

    author: Signature
    message: str
    diff: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A claim about the patched tree that `check` and every rebase test.

    Exactly one of `absent`, `present` (regular expressions over `paths`, which are globs) or
    `attribute` (`module:qualified.name`) is set; `count` is the expected number of matches.
    """

    paths: tuple[str, ...] = ()
    absent: str | None = None
    present: str | None = None
    attribute: str | None = None
    count: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One change we carry: what `series.yaml` says of it, and its file.

    `id` is a slug, stable for life. `line` is where its entry starts in `series.yaml`. `mail` is
    absent only for a cherry-pick that is kept as a reference to `origin.commit`, or that waits as
    `unresolved` until a scan has found the commit of `origin.pr`. `base` is the
    commit that its patchset was written on, when the patchset records it. `guards` gives a finding
    of the guards another severity for this patch, by its code.
    """

    id: str
    patchset: str
    file: Path | None
    line: int
    kind: Kind
    status: Status
    why: str
    mail: Mail | None
    base: Oid | None = None
    origin: Origin = field(default_factory=Origin)
    drop_when: str | None = None
    requires: tuple[str, ...] = ()
    conflicts_with: tuple[str, ...] = ()
    hot_path: bool = False
    tests: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()
    guards: tuple[tuple[str, Severity], ...] = ()

    @property
    def subject(self) -> str:
        """Return the first line of the commit message, or of `why` for a reference."""
        return (self.mail.message if self.mail else self.why).partition("\n")[0]

    @property
    def unresolved(self) -> bool:
        """Say whether only a pull request is known: a candidate with nothing to put on a tree."""
        reference = self.kind is Kind.CHERRY_PICK and self.file is None and self.mail is None
        known = self.origin.commit is not None or self.origin.pr is None
        return reference and not known and self.status is Status.CANDIDATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """An ordered list of patches: a patchset, or several of them in a recipe's order.

    `base` is the commit that the patches were written on, when the patchset records it.
    """

    name: str
    patches: tuple[Patch, ...]
    base: Oid | None = None


# --- replay -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One conflict inside one file: the three texts and where it starts.

    `line` is 1-based in the file as it is on `onto`; each text is whole lines.
    """

    line: int
    ours: str
    base: str
    theirs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Why one path does not merge. `reason` is git's word (`contents`, `modify/delete`, ...)."""

    path: str
    reason: str
    regions: tuple[Region, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """How a conflict could be settled; shown, never taken without `--accept`.

    `tree` is the whole tree with the patch in it, `paths` what it touches there, `how` one
    sentence for each thing that was done, in order. `findings` are the guards' on that tree; a
    proposal with an error among them is shown, but cannot be accepted.
    """

    tree: Oid
    how: tuple[str, ...]
    paths: tuple[str, ...] = ()
    findings: tuple[Diagnostic, ...] = ()


class Verdict(StrEnum):
    """How much of a patch upstream already has."""

    ABSORBED = "absorbed"
    PARTIAL = "partial"
    DUPLICATE_RISK = "duplicate-risk"
    GATED_OFF = "gated-off"
    REVERTED = "reverted-upstream"
    CARRIED = "carried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Absorption:
    """A verdict and what it rests on, one sentence each; `commits` are upstream's, oldest first."""

    verdict: Verdict
    evidence: tuple[str, ...] = ()
    commits: tuple[Oid, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What became of one patch.

    `commit` is absent when nothing new was made; `tree` is the tree after this step either way.
    `blocked_by` names the earlier patch whose conflict this one would build upon.
    """

    patch: Patch
    outcome: Outcome
    tree: Oid
    commit: Oid | None = None
    paths: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    findings: tuple[Diagnostic, ...] = ()
    blocked_by: str | None = None
    proposal: Proposal | None = None
    absorption: Absorption | None = None

    @property
    def failed(self) -> bool:
        """Say whether this step keeps the series from being written or shipped."""
        accepted = self.outcome is Outcome.PROPOSED and self.commit is not None
        return not (accepted or self.outcome in _HARMLESS) or bool(errors(self.findings))


_HARMLESS = (Outcome.CLEAN, Outcome.ABSORBED, Outcome.SKIPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A series put on a base. `head` and `tree` are what the steps that applied add up to."""

    onto: Oid
    steps: tuple[Step, ...]
    head: Oid
    tree: Oid

    @property
    def clean(self) -> bool:
        """Say whether every patch applied, or had nothing to do, and no guard objected."""
        return not any(step.failed for step in self.steps)


# --- images -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """When a server counts as well; seconds. The defaults outlast SGLang's own 20 s."""

    interval_s: int = 30
    timeout_s: int = 30
    start_period_s: int = 300
    retries: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What a step that runs in `docker build` may use.

    `network` is docker's word (`none` is the hermetic switch). `packages` are pip requirements
    that the base lacks; `pip_args` go to that pip, `ca_bundle` is what it trusts.
    """

    network: str = "none"
    packages: tuple[str, ...] = ()
    pip_args: tuple[str, ...] = ()
    ca_bundle: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """What of upstream's work matters to a recipe; an empty part means the tool's own default.

    `keywords` are looked for in titles and paths, `paths` are globs in upstream's tree. `without`
    takes away: a word takes a commit by its title, a glob (with a `/`) takes a file of it.
    """

    keywords: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a recipe's server was seen to have: KV tokens at so many running requests.

    `kv_tokens` may be rounded; `free_at_worst_mib` is the least that was free under load.
    """

    requests: int
    kv_tokens: int
    free_at_worst_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """What `recipe explain` cannot compute and somebody has measured.

    `model` is a name of ours or the path of a `config.json`. `budget_mib` is what SGLang divides
    between states and KV cache; `load_gb` the free memory before and after loading the weights, as
    the server's log says it. Points check the arithmetic; without a budget they give one.
    """

    model: str | None = None
    card: str | None = None
    budget_mib: int | None = None
    load_gb: tuple[float, float] | None = None
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One image: what goes in, where it runs, how it is served. The result of a recipe file.

    `base` is an image reference by digest, or None for an overlay image; `base_layout` is an OCI
    layout or an archive that holds its bytes. `package_dir` is where the base keeps the directory
    that holds `sglang/` (None: look inside). `flags` are the arguments of `python3 -m
    sglang.launch_server` without their dashes, in the file's order, None for a switch; `env` and
    `labels` keep the file's order too. `user` is who runs the server (None: as the base says).
    """

    name: str
    path: Path
    tag: str
    model: str
    arch: str
    patchsets: tuple[str, ...]
    flags: tuple[tuple[str, str | None], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    base: str | None = None
    package_dir: str | None = None
    python: str = "3.12"
    base_layout: Path | None = None
    user: str | None = None
    health: Health = field(default_factory=Health)
    build: BuildOptions = field(default_factory=BuildOptions)
    nightly: Interest = field(default_factory=Interest)
    memory: MemoryFacts = field(default_factory=MemoryFacts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of an image, bottom to top in a tuple.

    `key` is the digest of everything that decides the content: same key, same bytes. `digest` is
    of the blob as stored (`media_type` says how it is compressed), `diff_id` of the plain tar.
    """

    name: str
    key: Digest
    digest: Digest
    diff_id: Digest
    size: int
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecord:
    """What an image is: the ids that prove it. `config` is the image id up to Docker 28."""

    tag: str
    manifest: Digest
    config: Digest
    layers: tuple[Layer, ...]
    labels: tuple[tuple[str, str], ...] = ()
