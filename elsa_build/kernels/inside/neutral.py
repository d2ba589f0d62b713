"""What a builder's folders are called in objects and in keys, so that no machine is in them.

Compilers write down the paths of headers (in messages of assertions), temporary names with process
numbers, and an id of all that. Two builders would never make the same library, and a virtual
environment elsewhere would compile everything again.
"""

import os
import re
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

FORM = "neutral 1"
"""Part of what names a piece of work: an older release of this module made other bytes."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Absolute folders of this machine and what they are called, the longest first."""

    names: Mapping[str, str]

    def hidden(self, text: str) -> str:
        """Return a text with each folder as `<name>`; `/w/lib` is not the beginning of `/w/lib2`.

        >>> folders = Folders({"/w/lib": "site-packages"})
        >>> folders.hidden("nvcc -I/w/lib/tvm /w/lib2/a.cu")
        'nvcc -I<site-packages>/tvm /w/lib2/a.cu'
        """
        found = "|".join(map(re.escape, self.names))
        whole = rf"({found})(?![\w.-])"
        return re.sub(whole, lambda one: f"<{self.names[one[1]]}>", text) if found else text

    def shown(self, text: str) -> str:
        """Return a text that `hidden` made with the folders of this machine."""
        for folder, name in self.names.items():
            text = text.replace(f"<{name}>", folder)
        return text

    def flags(self) -> list[str]:
        """Return what makes gcc write the names; the last one that matches holds.

        A path with a blank or a comma cannot be handed through nvcc, and stays as it is.
        """
        plain = [folder for folder in self.names if not re.search(r"[\s,=]", folder)]
        return [f"-ffile-prefix-map={one}/={self.names[one]}/" for one in reversed(plain)]

    def for_nvcc(self, source: str) -> dict[str, str]:
        """Return a variable that makes nvcc hand them on: no command line, so no key, has them.

        `source` is what is compiled, or what stands for it: from its path nvcc makes the names of
        what is internal to a module, and their order decides the rest of the library.
        """
        name = re.sub(r"\s", "_", self.hidden(source))
        words = ["--orig_src_path_name", re.sub(r"[<>]", "", name)]
        options = [
            *(f"-Xcudafe={word}" for word in words),
            *(f"-Xcompiler={flag}" for flag in self.flags()),
        ]
        return {"NVCC_APPEND_FLAGS": " ".join(options)}


def folders(work: str | None = None) -> Folders:
    """Return the folders of this interpreter, its toolkit, its tree, and of the work at hand."""
    tree = find_spec("sglang")
    home = os.environ.get("CUDA_HOME")
    named = {
        "site-packages": sysconfig.get_path("purelib"),
        "python": sysconfig.get_path("include"),
        "cuda": home,
        "tree": str(Path(tree.origin).parents[1]) if tree and tree.origin else None,
        "work": work,
    }
    found = {
        path: name
        for name, folder in named.items()
        if folder
        for path in (folder, os.path.realpath(folder))
    }
    return Folders({path: found[path] for path in sorted(found, key=len, reverse=True)})


def strip(made: Path) -> None:
    """Take from an object or a shared library what nobody links or loads, and says how it was made.

    nvcc's temporary names are among it, with the number of its process. The file is replaced, not
    written to: it may be loaded already. What is no ELF file stays as it is.

    Raises:
        RuntimeError: binutils' strip is not there, or refuses.
    """
    with made.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return
    making = made.with_name(f"{made.name}.stripped")
    command = ["strip", "--strip-unneeded", "--remove-section=.note.gnu.build-id"]
    try:
        ran = subprocess.run(
            [*command, "-o", str(making), str(made)], capture_output=True, text=True, check=False
        )
    except OSError as e:
        raise RuntimeError(f"strip cannot be run: {e.strerror}") from e
    if ran.returncode:
        raise RuntimeError(f"strip {made.name}: {ran.stderr.strip()}")
    making.chmod(0o644)
    making.rename(made)
