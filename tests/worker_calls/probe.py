"""Calls for the tests of pool and farm: small, and each does one thing that real ones may do."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def write(setup, arguments):
    """Write a file below the build folder, as a compiler does."""
    build = Path(setup["build"])
    for name, text in arguments["files"].items():
        (build / name).parent.mkdir(parents=True, exist_ok=True)
        (build / name).write_text(text)
    return {"files": sorted(arguments["files"]), "fresh": True}


def nap(setup, arguments):
    """Sleep, and tell when it began and ended on the machine's clock, and in which process."""
    begun = time.monotonic()
    time.sleep(arguments["seconds"])
    return {"begun": begun, "ended": time.monotonic(), "pid": os.getpid()}


def joined(setup, arguments):
    """Join files of needed jobs."""
    build = Path(setup["build"])
    text = "".join((build / name).read_text() for name in arguments["of"])
    return write(setup, {"files": {arguments["to"]: text}})


def fail(setup, arguments):
    """Fail as a compiler does, with a cause."""
    try:
        Path("/nowhere/ptxas").read_bytes()
    except OSError as e:
        raise ValueError("cannot compile add_kernel") from e


def leave(setup, arguments):
    """End the worker."""
    raise SystemExit(4)


def die(setup, arguments):
    """Die as one that the kernel kills for its memory does; leave a mark each time."""
    with Path(arguments["marks"]).open("a") as file:
        file.write(f"{time.monotonic()}\n")
    if len(Path(arguments["marks"]).read_text().split()) <= arguments.get("times", 99):
        os.kill(os.getpid(), arguments.get("signal", signal.SIGKILL))
        time.sleep(5)
    return {"begun": time.monotonic()}


def exit_at_once(setup, arguments):
    """End the process without a word."""
    sys.stderr.write("cannot allocate the arena\n")
    sys.stderr.flush()
    os._exit(3)


def starved(setup, arguments):
    """Run a compiler that is killed, the first time."""
    marks = Path(arguments["marks"])
    first = not marks.exists()
    marks.touch()
    subprocess.run(["sh", "-c", "kill -9 $$" if first else "true"], check=True)
    return {}


def noise(setup, arguments):
    """Print as libraries do: Python's, C's, a child's; and read what is not theirs."""
    sys.stdout.write("from Python\n")
    sys.stdout.flush()
    libc = ctypes.CDLL(None)
    libc.puts(b"from C")
    libc.fflush(None)
    subprocess.run(["sh", "-c", "echo from a child; cat"], check=True)
    return {"read": sys.stdin.read()}


def babble(setup, arguments):
    """Write on every descriptor but our own three, as nothing should."""
    for number in range(3, 20):
        try:
            os.write(number, b"Warning: not JSON\n")
        except OSError:
            continue
    return {}


def eat(setup, arguments):
    """Use memory in a child, then half as much here, then CPU."""
    code = f"b'x' * ({arguments['mib']} << 20); import time; time.sleep(0.5)"
    subprocess.run([sys.executable, "-c", code], check=True)
    used = len(b"x" * (arguments["mib"] << 19))
    end = time.process_time() + arguments["cpu_s"]
    while time.process_time() < end:
        pass
    return {"used": used}


def fill(setup, arguments):
    """Write more than a small disk holds."""
    place = Path(setup["build"]) / arguments["name"]
    with place.open("wb") as file:
        file.write(b"x" * (arguments["kib"] << 10))
    return {"files": [arguments["name"]]}


def unspeakable(setup, arguments):
    """Return what no JSON can hold."""
    return {"found": {1, 2}}


def told(setup, arguments):
    """Return what the worker was told."""
    return {"setup": json.loads(json.dumps(dict(setup))), "env": os.environ.get("ELSA_TEST", "")}


def long_child(setup, arguments):
    """Start a compiler that runs for long, and tell its number."""
    child = subprocess.Popen(["sleep", "300"])
    Path(arguments["pid"]).write_text(str(child.pid))
    child.wait()
    return {}


def nap_and_mark(setup, arguments):
    """Sleep, after a sign of which process began."""
    (Path(arguments["marks"]) / f"mark-{os.getpid()}").touch()
    return nap(setup, arguments)


def whereabouts(setup, arguments):
    """Tell the build folder, also in a way that no rewriting of paths finds."""
    time.sleep(arguments["seconds"])
    return {"build": setup["build"], "backwards": setup["build"][::-1], "pid": os.getpid()}


def liar(setup, arguments):
    """Tell of a file that is not there."""
    return {"files": ["triton/none.cubin"]}


def toolchain(setup, arguments):
    """Tell a version, as a fingerprint of compilers does."""
    return {"nvcc": arguments["version"]}


def odd_output(setup, arguments):
    """Tell of a file that lies outside every folder of ours."""
    return {"output": "/etc/hostname"}


def group(setup, arguments):
    """Write a file that names its neighbour by its whole path, and a binary one."""
    folder = Path(setup["build"]) / "triton"
    folder.mkdir(exist_ok=True)
    (folder / "k.cubin").write_bytes(b"\x7fELF\xff")
    (folder / "__grp__k.json").write_text(json.dumps({"k.cubin": str(folder / "k.cubin")}))
    return {"files": ["triton/__grp__k.json", "triton/k.cubin"]}


def follow(setup, arguments):
    """Read the neighbour that a file names."""
    text = (Path(setup["build"]) / "triton/__grp__k.json").read_text()
    return {"size": Path(json.loads(text)["k.cubin"]).stat().st_size}


def triton(setup, arguments):
    """Tell the version of Triton."""
    from triton import __version__  # noqa: PLC0415 - only in its interpreter

    return {"triton": __version__}
