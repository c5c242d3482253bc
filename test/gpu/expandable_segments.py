#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:1.19]
"""Tests tensors of PyTorch's own allocator as windows, with two ranks as processes.

With expandable segments PyTorch maps many driver allocations back to back. They become windows if
they were created with an exportable handle type; otherwise the refusal names the missing type.
Memory of cudaMalloc, PyTorch's default, is refused, and the refusal names the call to use instead.
Such memory can still be reduced.

usage: expandable_segments.py BUILD_FOLDER
Exit status 0: as promised; 77: no GPU or no PyTorch; 1: not as promised.
"""
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import time

RANKS = 2
TIMEOUT_SECONDS = 100  # limits one case, with the import of PyTorch
MIB = 1 << 20
FLOAT32, SUM, SYMMETRIC = 7, 0, 1
FD, FABRIC = 1, 8  # bits of CUmemAllocationHandleType


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int),
                ("location_type", ctypes.c_int), ("location_id", ctypes.c_int),
                ("metadata", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class Oriel:
    """The library of the build folder, through its C interface."""

    def __init__(self, build):
        self.lib = ctypes.CDLL(str(build / "lib" / "libnccl.so.2"))
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self.lib.ncclGetLastError.restype = ctypes.c_char_p
        self.lib.ncclGetLastError.argtypes = [pointer]
        self.lib.ncclCommInitRank.argtypes = [pointer, ctypes.c_int, UniqueId, ctypes.c_int]
        self.lib.ncclCommWindowRegister.argtypes = [pointer, pointer, size, pointer, ctypes.c_int]
        self.lib.ncclCommWindowDeregister.argtypes = [pointer, pointer]
        self.lib.ncclCommGetAsyncError.argtypes = [pointer, pointer]
        self.lib.ncclCommDestroy.argtypes = [pointer]
        self.lib.ncclAllReduce.argtypes = [pointer, pointer, size, ctypes.c_int, ctypes.c_int,
                                           pointer, pointer]

    def text(self):
        return self.lib.ncclGetLastError(None).decode()

    def must(self, result, what):
        if result != 0:
            raise AssertionError(f"{what} returned {result}: {self.text()}")


class Rank:
    """One rank: a communicator, and tensors of PyTorch's allocator."""

    def __init__(self, rank, build, meeting):
        import torch
        self.torch, self.rank, self.meeting = torch, rank, meeting
        self.meetings = 0
        self.oriel = Oriel(build)
        torch.cuda.set_device(rank % torch.cuda.device_count())
        torch.cuda.current_stream().synchronize()
        self.comm = ctypes.c_void_p()
        self.oriel.must(self.oriel.lib.ncclCommInitRank(ctypes.byref(self.comm), RANKS,
                                                        self.unique_id(), rank), "init")

    def unique_id(self):
        path, made = self.meeting / "id", UniqueId()
        if self.rank == 0:
            self.oriel.must(self.oriel.lib.ncclGetUniqueId(ctypes.byref(made)), "ncclGetUniqueId")
            (self.meeting / "id.new").write_bytes(bytes(made))
            (self.meeting / "id.new").rename(path)
        wait_for(path.exists, "rank 0's unique id")
        return UniqueId.from_buffer_copy(path.read_bytes())

    def barrier(self):
        self.meetings += 1
        (self.meeting / f"at-{self.meetings}-{self.rank}").touch()
        for other in range(RANKS):
            wait_for((self.meeting / f"at-{self.meetings}-{other}").exists, f"rank {other}")

    def handle_types(self, tensor):
        """Returns the handle types of the tensor's VMM allocation; None if it has none."""
        cuda = ctypes.CDLL("libcuda.so.1")
        handle, properties = ctypes.c_ulonglong(), AllocationProperties()
        if cuda.cuMemRetainAllocationHandle(ctypes.byref(handle),
                                            ctypes.c_void_p(tensor.data_ptr())) != 0:
            return None
        status = cuda.cuMemGetAllocationPropertiesFromHandle(ctypes.byref(properties), handle)
        cuda.cuMemRelease(handle)
        assert status == 0, f"cuMemGetAllocationPropertiesFromHandle returned {status}"
        return properties.handle_types

    def register(self, tensor):
        """Returns (window, text); if registration is refused, (None, text of the refusal)."""
        window = ctypes.c_void_p()
        result = self.oriel.lib.ncclCommWindowRegister(
            self.comm, tensor.data_ptr(), tensor.numel() * tensor.element_size(),
            ctypes.byref(window), SYMMETRIC)
        if result != 0:
            assert window.value is None, "a refused registration gave out a window"
            return None, self.oriel.text()
        assert window.value, "a window is null"
        return window, ""

    def deregister(self, window):
        self.oriel.must(self.oriel.lib.ncclCommWindowDeregister(self.comm, window),
                        "ncclCommWindowDeregister")

    def values(self, rank, count, seed):
        generator = self.torch.Generator(device="cpu").manual_seed(1000 * seed + rank)
        return self.torch.rand(count, generator=generator)

    def check_sum(self, source, target, seed, what):
        """All-reduces `source` into `target`, and compares with PyTorch's sum bit for bit."""
        torch, count = self.torch, source.numel()
        inputs = [self.values(rank, count, seed) for rank in range(RANKS)]
        source.copy_(inputs[self.rank])
        stream = torch.cuda.current_stream()
        self.oriel.must(self.oriel.lib.ncclAllReduce(source.data_ptr(), target.data_ptr(), count,
                                                     FLOAT32, SUM, self.comm, stream.cuda_stream),
                        "ncclAllReduce")
        done = torch.cuda.Event()
        done.record(stream)
        wait_for(done.query, "the all-reduce")
        state = ctypes.c_int(-1)
        self.oriel.must(self.oriel.lib.ncclCommGetAsyncError(self.comm, ctypes.byref(state)),
                        "ncclCommGetAsyncError")
        assert state.value == 0, f"{what}: asynchronous error {state.value}"
        expected = inputs[0] + inputs[1]
        assert torch.equal(target.cpu(), expected), f"{what}: the sum differs from PyTorch's"
        self.say(f"{what}: equals PyTorch's sum")

    def say(self, text):
        if self.rank == 0:
            print("  " + text, flush=True)

    def end(self):
        self.barrier()
        self.oriel.must(self.oriel.lib.ncclCommDestroy(self.comm), "ncclCommDestroy")
        self.barrier()


def wait_for(predicate, what):
    end = time.monotonic() + TIMEOUT_SECONDS
    while not predicate():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.0005)


def name_of(types):
    names = [name for bit, name in ((FD, "file descriptor"), (FABRIC, "fabric handle"))
             if types & bit]
    return " and ".join(names) or "nothing"


def expandable(self):
    """Checks that tensors of expandable segments become windows, or the refusal names the type."""
    torch = self.torch
    count = 48 * MIB // 4
    first = torch.empty(count, dtype=torch.float32, device="cuda")
    types = self.handle_types(first)
    assert types is not None, "the setting has made no expandable segments"
    self.say(f"PyTorch {torch.__version__}: expandable segments export as {name_of(types)}")
    if types == 0:
        window, text = self.register(first)
        assert window is None, "memory without a handle type was taken"
        assert "exportable handle type" in text, f"the refusal does not name it: {text}"
        self.say(f"refused as promised: {text}")
        return
    second = torch.empty(count, dtype=torch.float32, device="cuda")
    windows = []
    for tensor in (first, second):
        window, text = self.register(tensor)
        assert window is not None, f"refused, although it is exportable: {text}"
        windows.append(window)
    self.check_sum(first, second, 1, "48 MiB in several allocations, registered")
    self.check_sum(first, first, 2, "the same in place")
    part = slice(12345, 5_000_001)
    self.check_sum(first[part], second[part], 3, "a part across allocations")
    # The segment grows behind registered windows.
    third = torch.empty(30 * MIB // 4, dtype=torch.float32, device="cuda")
    window, text = self.register(third)
    assert window is not None, f"a later tensor is refused: {text}"
    windows.append(window)
    self.check_sum(third, third, 4, "a tensor that made the segment grow")
    self.barrier()
    for window in windows:
        self.deregister(window)
    # New memory, usually at the same addresses.
    address = first.data_ptr()
    del first, second, third
    torch.cuda.empty_cache()
    again = torch.empty(count, dtype=torch.float32, device="cuda")
    window, text = self.register(again)
    assert window is not None, f"new memory is refused: {text}"
    same = "the same address" if again.data_ptr() == address else "another address"
    self.check_sum(again, again, 5, f"new memory at {same}")
    self.barrier()
    self.deregister(window)


def plain(self):
    """Checks that tensors of cudaMalloc are refused, with the call to use, but can be reduced."""
    tensor = self.torch.empty(4 * MIB // 4, dtype=self.torch.float32, device="cuda")
    assert self.handle_types(tensor) is None, "these tensors are not of cudaMalloc"
    window, text = self.register(tensor)
    assert window is None, "memory of cudaMalloc was taken"
    assert "ncclMemAlloc" in text, f"the refusal does not say what to use: {text}"
    self.say(f"refused as promised: {text}")
    self.check_sum(tensor, tensor, 6, "unregistered")


def mixed(self):
    """Checks that both ranks are refused, with the reason, if only rank 1 has cudaMalloc memory."""
    tensor = self.torch.empty(4 * MIB // 4, dtype=self.torch.float32, device="cuda")
    window, text = self.register(tensor)
    assert window is None, "a window of one rank alone"
    assert "ncclMemAlloc" in text or "exportable handle type" in text, f"no reason: {text}"
    assert "rank 1" in text or "exportable handle type" in text, f"no rank: {text}"
    self.say(f"refused as promised: {text}")
    self.check_sum(tensor, tensor, 7, "unregistered")


CASES = {"expandable": (expandable, [True, True]), "plain": (plain, [False, False]),
         "mixed": (mixed, [True, False])}


def run_case(name, build):
    print(f"{name}:", flush=True)
    workers = []
    with tempfile.TemporaryDirectory() as meeting:
        for rank in range(RANKS):
            setting = f"expandable_segments:{CASES[name][1][rank]}"
            environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=setting,
                               PYTORCH_ALLOC_CONF=setting)
            workers.append(subprocess.Popen(
                [sys.executable, __file__, str(build), name, str(rank), meeting],
                env=environment))
        end = time.monotonic() + TIMEOUT_SECONDS
        try:
            return all([worker.wait(max(0.1, end - time.monotonic())) == 0 for worker in workers])
        except subprocess.TimeoutExpired:
            print(f"  FAIL: not ended within {TIMEOUT_SECONDS} seconds", flush=True)
            return False
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[1]).resolve()
    if len(sys.argv) == 5:
        name, rank, meeting = sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4])
        try:
            own_rank = Rank(rank, build, meeting)
            CASES[name][0](own_rank)
            own_rank.end()
        except Exception as error:  # any error must end the other rank's wait soon
            print(f"  FAIL: rank {rank}: {type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    try:
        import torch
    except ImportError:
        print("skipped: there is no PyTorch")
        return 77
    # Creates no CUDA context.
    if torch.cuda.device_count() == 0:
        print("skipped: there is no GPU")
        return 77
    return 0 if all([run_case(name, build) for name in CASES]) else 1


if __name__ == "__main__":
    sys.exit(main())
