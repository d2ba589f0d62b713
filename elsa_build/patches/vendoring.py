"""Write picks that are kept as references out as files, to build without upstream's history.

A file names the blobs that it was made from, and those of upstream's own parent commit may never
come again. So a pick is written as it stands in our patchset, on the base and what is before it.
"""

from collections.abc import Collection
from pathlib import Path

from elsa_build.git.door import Git
from elsa_build.patches import editing, seriestext
from elsa_build.patches.importing import file_name
from elsa_build.patches.mail import parse, write
from elsa_build.patches.seriesfile import NAME, active, load, patch_of


def vendor(git: Git, folder: Path, root: Path, ids: Collection[str] = ()) -> editing.Edit:
    """Return the edit that gives references of a patchset a file each (default: to all of them).

    Args:
        git: A quarantine over a repository that has the base and the commits.
        folder: `patchsets/NAME`.
        root: The project.
        ids: Only these; what has a file already stays as it is.

    Raises:
        ConfigError: There is no such patch, or the base is not known (exit 5).
        ConflictError: A patch does not apply on the patchset's own base (exit 3).
    """
    series = load(folder, root=root)
    chosen = {patch_of(series, one).id for one in ids} or {patch.id for patch in series.patches}
    wanted = [
        patch
        for patch in series.patches
        if patch.id in chosen and patch.mail is None and active(patch)
    ]
    if not wanted:
        return editing.Edit(folder=folder, files={})
    shown = str((folder / NAME).relative_to(root))
    text = (folder / NAME).read_text(encoding="utf-8")
    number = editing.last_number(series)
    files: dict[str, bytes] = {}
    for step in editing.stack(git, series).steps:
        if step.patch not in wanted or step.commit is None:
            continue
        number += 1
        name = file_name(number, step.patch.id)
        made = git.commit(step.commit)
        message = editing.rightly(step.patch, made.message)
        whole = git.commit_tree(made.tree, made.parents, message, made.author)
        files[name] = write(git, whole)
        parse(f"{shown}: {name}", files[name])
        text = seriestext.with_field(text, shown, step.patch.id, "file", name)
    return editing.Edit(folder=folder, files={**files, NAME: text.encode()}, patches=tuple(wanted))
