# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Named checks that all ranks of a script run together, and their report to run.py.

A check is a function that every rank calls. `expect` records a wrong result and continues, so that
no rank leaves its peers in a collective. After an exception the ranks no longer agree on the next
call, so all of them stop after that check.

Ranks synchronise through files in the folder that FRAMEWORKS_MEETING names. This needs no
framework, and works even if communication has failed. Lines that begin with @ are for run.py:
rank 0 prints results, and any rank prints what is wrong.
"""
import ctypes
import faulthandler
import importlib.util
import json
import os
import pathlib
import signal
import sys
import time
import traceback

MEETING = "FRAMEWORKS_MEETING"
AGREEMENT_S = 45  # timeout of a rank that waits for the others after a check
MOST_DETAILS = 4  # wrong results that one rank prints per check
SKIPPED = 77


class Skip(Exception):
    """Raised by a check on all ranks if there is nothing to run here."""


class Dladdr(ctypes.Structure):
    """Dl_info of the C library."""
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def file_of(symbol):
    """Returns the path of the file whose definition of `symbol` this process uses; None if none."""
    everything = ctypes.CDLL(None)
    try:
        address = ctypes.cast(getattr(everything, symbol), ctypes.c_void_p)
    except AttributeError:
        return None
    found = Dladdr()
    everything.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Dladdr)]
    if everything.dladdr(address, ctypes.byref(found)) == 0:
        return None
    return os.fsdecode(found.file)


def library_behind(symbol):
    """Returns the path of the library that implements `symbol`.

    Oriel's libnccl.so.2 only jumps into the liboriel.so.0 of its own folder, which is then mapped.
    """
    path = file_of(symbol)
    if path is None:
        return "nothing"
    oriel = os.path.realpath(os.path.join(os.path.dirname(path), "liboriel.so.0"))
    mapped = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines()}
    if os.path.basename(path).startswith("libnccl.so") and oriel in mapped:
        return os.path.join(os.path.dirname(path), "liboriel.so.0")
    return path


def gpu_count():
    """Returns the number of GPUs that the driver shows; 0 if there is no driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def other_nccl_files():
    """Returns the libnccl.so files other than Oriel's that this process has mapped."""
    folder = os.path.realpath(os.path.dirname(library_behind("ncclAllReduce")))
    mapped = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines()}
    return sorted(path for path in mapped if os.path.basename(path).startswith("libnccl.so")
                  and os.path.realpath(os.path.dirname(path)) != folder)


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def skip(reason):
    """Ends this rank as skipped. All ranks say why: oriel-run stops the others after the first."""
    say(f"skipped: {reason}")
    os._exit(SKIPPED)


def need(*modules):
    """Skips the script if one of the modules is not installed; imports none of them."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            skip(f"there is no Python module {module}")


class Checks:
    """The checks of one rank."""

    def __init__(self):
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        folder = os.environ.get(MEETING)
        if folder is None and self.world > 1:
            sys.exit(f"{MEETING} is not set: start this script by run.py")
        self.folder = pathlib.Path(folder) if folder else None
        self.meetings = 0
        self.failed = False
        self.wrong = []
        self.notes = set()
        faulthandler.register(signal.SIGTERM, chain=True)  # prints the stack of a stuck rank

    def share(self, subject, value):
        """Returns the values of all ranks by rank; a value is anything that JSON can hold.

        Ends the process if a rank does not answer, or answers about another subject. The latter
        happens if a rank has left a check by an exception.
        """
        self.meetings += 1
        if self.world == 1:
            return [value]
        own = self.folder / f"{self.meetings}.{self.rank}"
        own.with_suffix(f".{self.rank}.new").write_text(json.dumps([subject, value]))
        own.with_suffix(f".{self.rank}.new").rename(own)
        values, end = [], time.monotonic() + AGREEMENT_S
        for rank in range(self.world):
            path = self.folder / f"{self.meetings}.{rank}"
            while not path.exists():
                if time.monotonic() > end:
                    self.stop(f"rank {self.rank} waited {AGREEMENT_S} s for rank {rank}")
                time.sleep(0.001)
            other, given = json.loads(path.read_text())
            if other != subject:
                time.sleep(1)  # lets the other rank print why
                self.stop(f"rank {rank} is at '{other}', rank {self.rank} at '{subject}'")
            values.append(given)
        return values

    def stop(self, why):
        say(f"@stop {why}")
        os._exit(1)  # destructors might wait for ranks that never come

    def expect(self, condition, what):
        """Records `what` as wrong unless `condition` holds; the check continues."""
        if not condition:
            self.wrong.append(what)
        return bool(condition)

    def note(self, text):
        """Adds a fact to the report: rank 0 prints it once."""
        if self.rank == 0 and text not in self.notes:
            self.notes.add(text)
            say(f"@note {text}")

    def run(self, name, body):
        """Runs one check on all ranks and reports it."""
        self.wrong = []
        begin, outcome = time.monotonic(), "pass"
        if self.rank == 0:
            say(f"@begin {name}")
        try:
            body()
        except Skip as reason:
            outcome = f"skip {reason}"
        except Exception as error:  # the other ranks must learn of any error
            outcome = "stop"
            text = str(error).strip() or "no text"
            self.wrong.append(f"{type(error).__name__}: {text}")
            traceback.print_exc()
        if self.wrong and outcome != "stop":
            outcome = "fail"
        for what in self.wrong[:MOST_DETAILS]:
            say(f"@detail rank {self.rank}: {name}: " + " | ".join(what.splitlines())[:600])
        if len(self.wrong) > MOST_DETAILS:
            say(f"@detail rank {self.rank}: {name}: {len(self.wrong) - MOST_DETAILS} more")
        self.report(name, self.share(f"end of {name}", outcome), time.monotonic() - begin)

    def report(self, name, outcomes, seconds):
        bad = [rank for rank, outcome in enumerate(outcomes) if outcome in ("fail", "stop")]
        self.failed = self.failed or bool(bad)
        skips = [outcome for outcome in outcomes if outcome.startswith("skip ")]
        if self.rank == 0:
            if bad:
                say(f"@fail {seconds:.2f} {name}")
            elif skips:
                say(f"@skip {seconds:.2f} {name}: {skips[0][5:]}")
            else:
                say(f"@pass {seconds:.2f} {name}")
        if "stop" in outcomes:
            self.share("stop", None)  # waits until all ranks have printed
            self.stop(f"after '{name}', which raised an exception on a rank")

    def check_library(self):
        """Checks that the calls of this process reach Oriel."""
        path = library_behind("ncclAllReduce")
        if self.rank == 0:
            say(f"@resolved {path}")
        self.expect(os.path.basename(path).startswith("liboriel.so"),
                    f"ncclAllReduce: expected liboriel.so.0, got {path}")

    def finish(self, close=lambda: None):
        """Calls `close` as one more check, and ends the process."""
        for path in other_nccl_files():
            self.note(f"also in memory: {path}")
        self.run("end", close)
        self.share("done", None)
        sys.stdout.flush()
        # After a success, the interpreter's normal exit is tested too.
        if self.failed:
            os._exit(1)
        sys.exit(0)
