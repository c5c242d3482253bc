#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""Tests a memory pool of PyTorch over ncclMemAlloc, registered with the process group as windows.

PyTorch's own allocator for NCCL's memory exists only if the GPU has multicast. A pluggable
allocator works everywhere: two functions that a C compiler builds here.
"""
import ctypes
import inspect
import pathlib
import shutil
import subprocess
import tempfile

import checks
import torch_ranks
from torch_ranks import expect_same, floats, ints, sum_of_ranks

SHIM = r"""
#include <stddef.h>
#include <sys/types.h>
int ncclMemAlloc(void** pointer, size_t bytes);
int ncclMemFree(void* pointer);
static int allocated, freed;
void* frameworks_allocate(ssize_t bytes, int device, void* stream) {
  void* pointer = NULL;
  (void)device, (void)stream;
  if (ncclMemAlloc(&pointer, (size_t)bytes) != 0) return NULL;
  ++allocated;
  return pointer;
}
void frameworks_free(void* pointer, ssize_t bytes, int device, void* stream) {
  (void)bytes, (void)device, (void)stream;
  if (ncclMemFree(pointer) == 0) ++freed;
}
int frameworks_allocated(void) { return allocated; }
int frameworks_freed(void) { return freed; }
"""
COUNTS = (1, 1001, 1 << 16, 3 << 20)


def build_shim(folder):
    """Builds the allocator and returns its path; it uses the ncclMemAlloc of this process."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise checks.Skip("there is no C compiler")
    source, library = folder / "shim.c", folder / "libshim.so"
    source.write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


class Suite:
    """The pool of one rank."""

    def __init__(self, ranks, device, folder):
        import torch
        import torch.distributed as dist
        self.torch, self.dist, self.ranks, self.device = torch, dist, ranks, device
        self.rank, self.world = ranks.rank, ranks.world
        self.folder = folder
        self.shim = self.allocator = self.pool = self.backend = None
        self.tensors = []

    def need_pool(self):
        if self.pool is None:
            raise checks.Skip("there is no pool")

    def make_pool(self):
        library = build_shim(self.folder)
        self.shim = ctypes.CDLL(str(library))
        self.allocator = self.torch.cuda.memory.CUDAPluggableAllocator(
            str(library), "frameworks_allocate", "frameworks_free")
        self.pool = self.torch.cuda.MemPool(self.allocator.allocator())
        with self.torch.cuda.use_mem_pool(self.pool):
            self.tensors = [self.torch.zeros(count, device=self.device) for count in COUNTS]
        self.ranks.expect(self.shim.frameworks_allocated() > 0, "ncclMemAlloc was not called")
        self.ranks.note(f"{len(COUNTS)} tensors in {self.shim.frameworks_allocated()} allocations")

    def register(self):
        """Registers the pool, as windows if PyTorch can; the segments are the same on all ranks."""
        self.need_pool()
        default = self.dist.distributed_c10d._get_default_group()
        self.backend = default._get_backend(self.device)
        documentation = inspect.getdoc(type(self.backend).register_mem_pool) or ""
        if "symm" in documentation:
            self.backend.register_mem_pool(self.pool, symm=True)
        else:
            self.backend.register_mem_pool(self.pool)
        self.ranks.note("registered " + ("with symm=True" if "symm" in documentation else
                                         "without symm, which this PyTorch does not have"))

    def all_reduce(self):
        self.need_pool()
        for turn in range(5):
            for count, data in zip(COUNTS, self.tensors):
                data.copy_(floats(ints(self.rank, count, turn), self.device))
                self.dist.all_reduce(data)
                expect_same(self.ranks, data, sum_of_ranks(self.world, count, turn).float(),
                            f"all_reduce of {count}, turn {turn}")

    def parts(self):
        """Reduces a part of a registered tensor, and memory that is not registered."""
        self.need_pool()
        whole, plain = self.tensors[-1], self.torch.zeros(2001, device=self.device)
        part = whole[12345:12345 + 2001]
        for data, what in ((part, "a part of a registered tensor"), (plain, "plain memory")):
            data.copy_(floats(ints(self.rank, 2001, 9), self.device))
            self.dist.all_reduce(data)
            expect_same(self.ranks, data, sum_of_ranks(self.world, 2001, 9).float(), what)

    def other_collectives(self):
        self.need_pool()
        count, whole = 1001, self.tensors[-1]
        data = floats(ints(self.rank, count, 4), self.device)
        gathered = whole[:count * self.world]
        self.dist.all_gather_into_tensor(gathered, data)
        sources = self.torch.cat([ints(rank, count, 4) for rank in range(self.world)]).float()
        expect_same(self.ranks, gathered, sources, "all_gather into a registered tensor")
        got = self.tensors[1]
        self.dist.reduce_scatter_tensor(got, gathered)
        own = self.world * ints(self.rank, count, 4).float()
        expect_same(self.ranks, got, own, "reduce_scatter between registered tensors")

    def grow(self):
        """Reduces a tensor that is created after the registration."""
        self.need_pool()
        count = 5 << 20
        with self.torch.cuda.use_mem_pool(self.pool):
            later = self.torch.zeros(count, device=self.device)
        later.copy_(floats(ints(self.rank, count, 6), self.device))
        self.dist.all_reduce(later)
        expect_same(self.ranks, later, sum_of_ranks(self.world, count, 6).float(), "a later tensor")
        self.tensors.append(later)

    def deregister(self):
        self.need_pool()
        self.torch.cuda.synchronize()
        self.dist.barrier()
        self.backend.deregister_mem_pool(self.pool)
        data = self.tensors[1]
        data.copy_(floats(ints(self.rank, data.numel(), 8), self.device))
        self.dist.all_reduce(data)
        expect_same(self.ranks, data, sum_of_ranks(self.world, data.numel(), 8).float(),
                    "after the end of the registration")

    def free(self):
        self.need_pool()
        self.torch.cuda.synchronize()
        self.tensors.clear()
        self.pool = None
        self.torch.cuda.empty_cache()
        allocated, freed = self.shim.frameworks_allocated(), self.shim.frameworks_freed()
        self.ranks.expect(allocated == freed, f"ncclMemFree: expected {allocated}, got {freed}")


def main():
    ranks, device = torch_ranks.start()
    with tempfile.TemporaryDirectory(prefix="oriel-frameworks-") as folder:
        suite = Suite(ranks, device, pathlib.Path(folder))
        ranks.run("init_process_group", lambda: torch_ranks.init(device))
        for name in ("make_pool", "register", "all_reduce", "parts", "other_collectives", "grow",
                     "deregister", "free"):
            ranks.run(name, getattr(suite, name))
    ranks.finish(torch_ranks.close)


if __name__ == "__main__":
    main()
