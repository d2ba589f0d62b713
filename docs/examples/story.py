"""A small upstream of our own and a series on it, so that the examples hold nobody else's code.

One of each: clean, clean in changed surroundings, clean but wrong, in conflict with a proposal,
in conflict with a deleted file, blocked, absorbed, dropped.
"""

from dataclasses import replace
from pathlib import Path

from elsa_build.git.door import Git
from elsa_build.git.objects import FILE, Entry
from elsa_build.model import (
    Absorption,
    Kind,
    Mail,
    Oid,
    Origin,
    Outcome,
    Patch,
    Pin,
    Proposal,
    Series,
    Signature,
    SourceKind,
    Status,
    Step,
    Verdict,
)
from elsa_build.patches.guarding import guarded
from elsa_build.patches.replay import replay
from elsa_build.patches.review import Review, Revision
from elsa_build.patches.reviewing import review

NOW = "2026-03-02T06:00:00+00:00"

POOL = '''\
"""Slots that requests borrow while they run."""

from kiln.clock import now


class SlotPool:
    """A fixed number of slots; the free ones are a stack."""

    def __init__(self, size):
        self.size = size
        self.free = list(range(size))
        self.taken_at = {}

    def take(self):
        if not self.free:
            return None
        slot = self.free.pop()
        self.taken_at[slot] = now()
        return slot

    def give_back(self, slot):
        del self.taken_at[slot]
        self.free.append(slot)

    def copy(self, source, target):
        """Copy the state of slots; the lists pair up."""
        for a, b in zip(source, target):
            self.states[b] = self.states[a]
'''

BATCH = '''\
"""Which requests run together."""


def batches(requests, limit):
    batch = []
    for request in requests:
        if len(batch) == limit:
            yield batch
            batch = []
        batch.append(request)
    yield batch


def longest(requests):
    return max(len(request.tokens) for request in requests)
'''

TRACE = '''\
"""Names for the lines of a trace."""


def name(request):
    return f"request {request.id}"


def colour(request):
    return "grey"
'''

CLOCK = '''\
"""One clock for all."""

import time


def now():
    return time.monotonic()
'''

STAMPED = """\
def stamped(batch):
    from kiln.clock import now

    return now(), batch
"""


class Story:
    """Writes commits into a repository without a work tree; each is an hour after the last."""

    def __init__(self, git: Git) -> None:
        self.git = git
        self._hour = 0

    def commit(
        self, parent: Oid | None, author: str, message: str, files: dict[str, str | None]
    ) -> Oid:
        """Commit these files on top of a parent's; None deletes."""
        self._hour += 1
        entries = {
            path: None
            if text is None
            else Entry(FILE, self.git.objects.write("blob", text.encode()))
            for path, text in files.items()
        }
        tree = self.git.objects.edit(self.git.commit(parent).tree if parent else None, entries)
        signature = Signature(
            name=author,
            email=f"{author.partition(' ')[0].lower()}@example.org",
            date=f"{1772000000 + 3600 * self._hour} +0000",
        )
        return self.git.commit_tree(tree, [parent] if parent else [], message, signature)


def upstream(story: Story) -> tuple[Oid, Oid]:
    """Write upstream's history and return the base of the series and where it is to go."""
    base = story.commit(
        None,
        "Mira Holt",
        "Release 1.4",
        {
            "python/kiln/pool.py": POOL,
            "python/kiln/batch.py": BATCH,
            "python/kiln/trace.py": TRACE,
            "python/kiln/clock.py": CLOCK,
            "python/kiln/__init__.py": "",
        },
    )
    pool = POOL.replace("from kiln.clock import now", "from kiln.timing import now")
    head = story.commit(
        base,
        "Oskar Lind",
        "Rename clock to timing (#211)\n\nThe name clashed with the scheduler's clock.",
        {"python/kiln/clock.py": None, "python/kiln/timing.py": CLOCK, "python/kiln/pool.py": pool},
    )
    pool = pool.replace(
        "        if not self.free:\n            return None\n        slot = self.free.pop()\n",
        "        if not self.free:\n            raise PoolEmptyError(self.size)\n"
        "        slot = self.free.popleft()\n",
    ).replace("self.free = list(range(size))", "self.free = deque(range(size))")
    pool = pool.replace("from kiln.timing", "from collections import deque\n\nfrom kiln.timing")
    head = story.commit(
        head,
        "Mira Holt",
        "Hand out the slot that rested longest (#218)\n\n"
        "A stack gave the same few slots to everyone, so that a stale state lived for hours.\n"
        "An empty pool is now an error of its own: three callers had forgotten to look.",
        {"python/kiln/pool.py": pool},
    )
    head = story.commit(
        head,
        "Priya Nair",
        "Drop the trace module (#223)\n\nThe profiler names its lines itself since 1.3.",
        {"python/kiln/trace.py": None},
    )
    batch = BATCH.replace("    yield batch\n\n\ndef", "    if batch:\n        yield batch\n\n\ndef")
    head = story.commit(
        head, "Oskar Lind", "Never yield an empty batch (#225)", {"python/kiln/batch.py": batch}
    )
    pool = pool.replace(
        "        for a, b in zip(source, target):",
        "        check_pairs(source, target)\n        for a, b in zip(source, target):",
    )
    head = story.commit(
        head, "Priya Nair", "Check the pairs of a copy (#231)", {"python/kiln/pool.py": pool}
    )
    return base, head


def series(story: Story, base: Oid) -> Series:
    """Return the series, each patch written on the ones before it."""
    texts = {
        "python/kiln/pool.py": POOL,
        "python/kiln/batch.py": BATCH,
        "python/kiln/trace.py": TRACE,
    }
    head = base
    patches = []
    for facts, path, *edits in _PATCHES:
        for old, new in edits:
            assert old in texts[path], (facts["id"], old)
            texts[path] = texts[path].replace(old, new, 1)
        written = story.commit(head, "Elsa", facts["id"], {path: texts[path]})
        form = ("--full-index", "--binary", "-U1", "--no-renames")
        diff = story.git.run("diff-tree", "-p", *form, head, written)[1]
        subject = facts["subject"]
        mail = Mail(author=story.git.commit(written).author, message=subject, diff=diff)
        number = len(patches) + 1
        patches.append(
            Patch(
                id=facts["id"],
                patchset="kiln-1.4",
                file=Path(f"patchsets/kiln-1.4/{number:04d}-{facts['id']}.patch"),
                line=6 * number,
                kind=facts.get("kind", Kind.LOCAL),
                status=facts.get("status", Status.KEPT),
                why=facts["why"],
                mail=mail,
                base=base,
                origin=facts.get("origin", Origin()),
                drop_when=facts.get("drop_when"),
                hot_path=facts.get("hot_path", False),
                tests=facts.get("tests", ()),
                evidence=facts.get("evidence", ()),
            )
        )
        head = written
    return Series(name="kiln-1.4", patches=tuple(patches), base=base)


_PATCHES = (
    (
        {
            "id": "note-copies",
            "subject": "Note which slots were copied",
            "why": "A copied slot is settled before its first step, or that step pays for it.",
            "hot_path": True,
            "tests": ("tests/test_copy.py",),
            "evidence": ("2026-02-11-note-copies",),
        },
        "python/kiln/pool.py",
        (
            "            self.states[b] = self.states[a]\n",
            "            self.states[b] = self.states[a]\n            self.settle(b)\n",
        ),
        (
            "    def copy(",
            "    def settle(self, slot):\n        self.fresh.add(slot)\n\n    def copy(",
        ),
        (
            "        self.taken_at = {}\n",
            "        self.taken_at = {}\n        self.fresh = set()\n",
        ),
    ),
    (
        {
            "id": "reserve-a-slot",
            "subject": "Keep one slot for checkpoints",
            "why": "Without a reserve a checkpoint waits until a request ends, up to a minute.",
            "kind": Kind.HAND_PORT,
            "origin": Origin(pr=198),
            "drop_when": "upstream has a reserve of its own (its issue 190)",
            "hot_path": True,
            "tests": ("tests/test_reserve.py",),
            "evidence": ("2026-02-14-reserve",),
        },
        "python/kiln/pool.py",
        (
            "        if not self.free:\n            return None\n",
            "        if len(self.free) <= self.reserve:\n            return None\n",
        ),
        ("(self, size):\n", "(self, size, reserve=1):\n        self.reserve = reserve\n"),
    ),
    (
        {
            "id": "count-refusals",
            "subject": "Count requests that found no slot",
            "why": "The dashboard shows how often the reserve turns somebody away.",
        },
        "python/kiln/pool.py",
        (
            "            return None\n        slot",
            "            self.refused += 1\n            return None\n        slot",
        ),
        ("        self.fresh = set()\n", "        self.fresh = set()\n        self.refused = 0\n"),
    ),
    (
        {
            "id": "no-empty-batch",
            "subject": "Do not yield an empty batch",
            "why": "An empty batch costs a whole step on the card.",
            "kind": Kind.HAND_PORT,
            "origin": Origin(pr=225),
        },
        "python/kiln/batch.py",
        ("    yield batch\n\n\ndef", "    if batch:\n        yield batch\n\n\ndef"),
    ),
    (
        {
            "id": "age-of-batch",
            "subject": "Note when a batch was made",
            "why": "Batches that wait too long are split by the next patch in the plan.",
        },
        "python/kiln/batch.py",
        (
            "def longest(requests):\n",
            f"{STAMPED}\n\ndef longest(requests):\n",
        ),
    ),
    (
        {
            "id": "colour-by-model",
            "subject": "Colour trace lines by model",
            "why": "Two models share a card here, and their lines look alike in a trace.",
        },
        "python/kiln/trace.py",
        ('    return "grey"\n', '    return COLOURS.get(request.model, "grey")\n'),
        ("\n\ndef name", '\nCOLOURS = {"draft": "teal", "target": "plum"}\n\n\ndef name'),
    ),
    (
        {
            "id": "old-shortcut",
            "subject": "Skip the longest prompt",
            "why": "Dropped: it did not pay. Carried before: the longest prompt sets the pace.",
            "status": Status.DROPPED,
        },
        "python/kiln/batch.py",
        ("    return max(", "    return sorted("),
    ),
)


def told(folder: Path) -> Review:
    """Write the story into a new repository and return the review of its rebase."""
    with Git.init(folder) as git:
        story = Story(git)
        base, onto = upstream(story)
        done = guarded(git, replay(git, series(story, base), onto))
        done = replace(done, steps=tuple(_with_proposal(story, s) for s in done.steps))
        return review(
            git,
            done,
            series="kiln-1.4",
            base=Revision(name="v1.4", commit=base),
            onto="nightly",
            now=NOW,
            pin=Pin(
                source=SourceKind.GIT,
                url="https://github.com/example/kiln",
                ref="v1.4",
                commit=base,
                tree=git.commit(base).tree,
                date="2026-02-25T07:13:20+00:00",
            ),
            digests=(("patchsets/kiln-1.4/series.yaml", f"sha256:{'5e' * 32}"),),
        )


def _with_proposal(story: Story, step: Step) -> Step:
    """Settle one conflict as a person would, and say of another what upstream has of it."""
    git = story.git
    if step.outcome is Outcome.ABSORBED:
        found = Absorption(
            verdict=Verdict.ABSORBED,
            evidence=("upstream's commit carries the number of its pull request, 225",),
        )
        return replace(step, absorption=found)
    if step.patch.id != "reserve-a-slot":
        return step
    entry = git.objects.find(step.tree, "python/kiln/pool.py")
    assert entry is not None
    text = git.objects.blob(entry.oid).decode()
    settled = text.replace("if not self.free:", "if len(self.free) <= self.reserve:")
    blob = git.objects.write("blob", settled.encode())
    tree = git.objects.edit(step.tree, {"python/kiln/pool.py": Entry(FILE, blob)})
    how = (
        "merged word by word: the patch changes the condition, upstream the line below it",
        "upstream's `raise PoolEmptyError` stays; the patch never changed that line's meaning",
    )
    return replace(
        step,
        outcome=Outcome.PROPOSED,
        proposal=Proposal(tree=tree, how=how, paths=("python/kiln/pool.py",)),
    )
