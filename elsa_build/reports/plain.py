"""A replay as plain data, the form that `--json` shows and scripts may rely on."""

from typing import Any

from elsa_build.diagnostics import Diagnostic
from elsa_build.model import Absorption, Conflict, Proposal, Replay, Step


def replay(done: Replay) -> dict[str, Any]:
    """Return a replay as JSON values."""
    return {
        "onto": done.onto,
        "head": done.head,
        "tree": done.tree,
        "clean": done.clean,
        "steps": [step(s) for s in done.steps],
    }


def step(s: Step) -> dict[str, Any]:
    """Return one step; `tree` is null unless the patch applied."""
    return {
        "id": s.patch.id,
        "patchset": s.patch.patchset,
        "outcome": str(s.outcome),
        "failed": s.failed,
        "subject": s.patch.subject,
        "commit": s.commit,
        "tree": s.tree if s.commit else None,
        "paths": list(s.paths),
        "conflicts": [conflict(c) for c in s.conflicts],
        "findings": [finding(f) for f in s.findings],
        "blocked_by": s.blocked_by,
        "absorption": absorption(s.absorption) if s.absorption else None,
        "proposal": proposal(s.proposal) if s.proposal else None,
    }


def conflict(c: Conflict) -> dict[str, Any]:
    """Return one conflicted path with its regions."""
    return {
        "path": c.path,
        "reason": c.reason,
        "regions": [
            {"line": r.line, "ours": r.ours, "base": r.base, "theirs": r.theirs} for r in c.regions
        ],
    }


def finding(d: Diagnostic) -> dict[str, Any]:
    """Return one diagnostic."""
    return {
        "code": d.code,
        "severity": str(d.severity),
        "message": d.message,
        "path": d.path,
        "line": d.line,
        "hint": d.hint,
    }


def absorption(a: Absorption) -> dict[str, Any]:
    """Return how much of a patch upstream has, and why we think so."""
    return {
        "verdict": str(a.verdict),
        "evidence": list(a.evidence),
        "commits": list(a.commits),
    }


def proposal(p: Proposal) -> dict[str, Any]:
    """Return a proposal: its tree, how it was made, what the guards say of it."""
    return {
        "tree": p.tree,
        "how": list(p.how),
        "paths": list(p.paths),
        "findings": [finding(f) for f in p.findings],
    }
