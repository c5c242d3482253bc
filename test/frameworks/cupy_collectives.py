#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.19]
"""Tests CuPy: cupy.cuda.nccl.NcclCommunicator, a thin wrapper of NCCL's interface, and
cupyx.distributed, which uses it."""
import gc
import os

import checks
from cupy_ranks import COUNTS, TYPES, Values

# Methods of NcclCommunicator that the checks call, and its attribute comm.
CALLED = {"abort", "allGather", "allReduce", "bcast", "broadcast", "check_async_error", "comm",
          "commSplit", "destroy", "device_id", "initAll", "rank_id", "recv", "reduce",
          "reduceScatter", "send", "size"}


class Suite(Values):
    """The calls of one rank."""

    def __init__(self, ranks, gpu):
        super().__init__(ranks, ranks.world)
        self.gpu, self.rank = gpu, ranks.rank
        self.comm = self.group = None
        self.cupy.cuda.Device(gpu).use()

    def make(self, name):
        """Returns a new communicator of all ranks."""
        own = list(self.nccl.get_unique_id()) if self.rank == 0 else None
        unique_id = bytes(self.ranks.share(f"id of {name}", own)[0])
        return self.nccl.NcclCommunicator(self.world, unique_id, self.rank)

    def start(self):
        nccl = self.nccl
        if not nccl.available:
            raise RuntimeError("cupy.cuda.nccl is not available")
        self.ranks.note(f"CuPy {self.cupy.__version__}, get_version() {nccl.get_version()}, built "
                        f"with {nccl.get_build_version()}")
        self.comm = self.make("the first")
        for what, got, expected in (("size", self.comm.size(), self.world),
                                    ("rank_id", self.comm.rank_id(), self.rank),
                                    ("device_id", self.comm.device_id(), self.gpu)):
            self.ranks.expect(got == expected, f"{what}: expected {expected}, got {got}")
        others = {name for name in dir(nccl.NcclCommunicator) if not name.startswith("_")} - CALLED
        if others:
            self.ranks.note(f"methods without a check: {', '.join(sorted(others))}")

    def all_reduce(self):
        nccl = self.nccl
        for dtype in TYPES:
            for count in COUNTS:
                ints, factors = self.ints(self.rank, count), self.factors(self.rank, count)
                got = self.put([0] * count, dtype)
                for op, values, expected in (
                        (nccl.NCCL_SUM, ints, self.everyone(count).sum(0)),
                        (nccl.NCCL_MAX, ints, self.everyone(count).max(0)),
                        (nccl.NCCL_MIN, ints, self.everyone(count).min(0)),
                        (nccl.NCCL_PROD, factors, self.product(count))):
                    data = self.put(values, dtype)
                    self.comm.allReduce(data.data.ptr, got.data.ptr, count, self.code(dtype), op, 0)
                    self.expect(got, expected, f"allReduce {dtype}, {count}, operation {op}")
        self.comm.check_async_error()

    def rooted(self):
        nccl, root = self.nccl, self.world - 1
        for count in COUNTS:
            data, got = self.put(self.ints(self.rank, count)), self.put([0] * count)
            self.comm.reduce(data.data.ptr, got.data.ptr, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM,
                             root, 0)
            if self.rank == root:
                self.expect(got, self.everyone(count).sum(0), f"reduce of {count}")
            self.comm.broadcast(data.data.ptr, got.data.ptr, count, nccl.NCCL_FLOAT32, root, 0)
            self.expect(got, self.ints(root, count), f"broadcast of {count}")
            self.comm.bcast(data.data.ptr, count, nccl.NCCL_FLOAT32, root, 0)
            self.expect(data, self.ints(root, count), f"bcast of {count}")

    def gathered(self):
        nccl = self.nccl
        for count in COUNTS:
            data, got = self.put(self.ints(self.rank, count)), self.put([0] * count * self.world)
            self.comm.allGather(data.data.ptr, got.data.ptr, count, nccl.NCCL_FLOAT32, 0)
            self.expect(got, self.everyone(count).reshape(-1), f"allGather of {count}")
            part = self.put([0] * count)
            self.comm.reduceScatter(got.data.ptr, part.data.ptr, count, nccl.NCCL_FLOAT32,
                                    nccl.NCCL_SUM, 0)
            self.expect(part, self.world * self.ints(self.rank, count), f"reduceScatter of {count}")

    def messages(self):
        if self.world < 2:
            raise checks.Skip("it needs two ranks")
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        with self.cupy.cuda.Stream(non_blocking=True) as stream:
            for count in COUNTS:
                data, got = self.put(self.ints(self.rank, count)), self.put([0] * count)
                self.nccl.groupStart()
                self.comm.send(data.data.ptr, count, self.nccl.NCCL_FLOAT32, after, stream.ptr)
                self.comm.recv(got.data.ptr, count, self.nccl.NCCL_FLOAT32, before, stream.ptr)
                self.nccl.groupEnd()
                self.expect(got, self.ints(before, count), f"ring of {count}")

    def split(self):
        """Splits by parity in reverse order, with and without a configuration; then leaves the last
        rank out."""
        nccl = self.nccl
        if not hasattr(nccl.NcclCommunicator, "commSplit"):
            raise checks.Skip("CuPy has no commSplit before version 14")
        members = [rank for rank in range(self.world) if rank % 2 == self.rank % 2][::-1]
        for config in (None, nccl.NcclConfig(split_share=1)):
            part = self.comm.commSplit(self.rank % 2, self.world - self.rank, config)
            self.expect_part(part, members, f"split by parity, configuration {config is not None}")
            part.destroy()
        left_out = self.world - 1
        part = self.comm.commSplit(-1 if self.rank == left_out else 7, 0)
        if self.rank == left_out:
            self.ranks.expect(part is None, f"color -1: expected None, got {part}")
        else:
            self.expect_part(part, list(range(left_out)), "split without the last rank")
            part.destroy()

    def expect_part(self, part, members, what):
        """Checks a communicator of `members`, ranks of the whole in the order of the part."""
        nccl, count, root = self.nccl, 1001, len(members) - 1
        for name, got, expected in (("size", part.size(), len(members)),
                                    ("rank_id", part.rank_id(), members.index(self.rank)),
                                    ("device_id", part.device_id(), self.gpu)):
            self.ranks.expect(got == expected, f"{what}: {name}: expected {expected}, got {got}")
        data, got = self.put(self.ints(self.rank, count)), self.put([0] * count)
        part.allReduce(data.data.ptr, got.data.ptr, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)
        self.expect(got, self.everyone(count)[members].sum(0), f"{what}: allReduce")
        part.broadcast(data.data.ptr, got.data.ptr, count, nccl.NCCL_FLOAT32, root, 0)
        self.expect(got, self.ints(members[root], count), f"{what}: broadcast")

    def ends(self):
        """Makes communicators of one rank and of all ranks, and ends them in both ways."""
        single, = self.nccl.NcclCommunicator.initAll([self.gpu])
        data = self.put(self.ints(self.rank, 1001))
        single.allReduce(data.data.ptr, data.data.ptr, 1001, self.nccl.NCCL_FLOAT32,
                         self.nccl.NCCL_SUM, 0)
        self.expect(data, self.ints(self.rank, 1001), "allReduce of one rank")
        self.cupy.cuda.Device().synchronize()
        single.destroy()
        second = self.make("the second")
        second.allReduce(data.data.ptr, data.data.ptr, 1001, self.nccl.NCCL_FLOAT32,
                         self.nccl.NCCL_SUM, 0)
        self.expect(data, self.everyone(1001).sum(0), "allReduce of a second communicator")
        self.ranks.share("before the abort", None)
        second.abort()
        self.comm.destroy()

    def distributed(self):
        """Tests cupyx.distributed, whose rank 0 serves the other ranks at MASTER_PORT."""
        from cupyx import distributed
        self.group = group = distributed.init_process_group(
            self.world, self.rank, host=os.environ.get("MASTER_ADDR", "127.0.0.1"),
            port=int(os.environ["MASTER_PORT"]))
        count, root = 1001, self.world - 1
        everyone = self.everyone(count)
        for dtype in TYPES:
            data, got = self.put(everyone[self.rank], dtype), self.put([0] * count, dtype)
            group.all_reduce(data, got)
            self.expect(got, everyone.sum(0), f"all_reduce {dtype}")
        for op, values, expected in (("prod", self.factors(self.rank, count), self.product(count)),
                                     ("max", everyone[self.rank], everyone.max(0)),
                                     ("min", everyone[self.rank], everyone.min(0))):
            data, got = self.put(values), self.put([0] * count)
            group.all_reduce(data, got, op=op)
            self.expect(got, expected, f"all_reduce {op}")
        data, got = self.put(everyone[self.rank]), self.put([0] * count)
        group.reduce(data, got, root=root, op="max")
        if self.rank == root:
            self.expect(got, everyone.max(0), "reduce")
        gathered = self.put(0 * everyone)
        group.all_gather(data, gathered, count)
        self.expect(gathered, everyone, "all_gather")
        group.reduce_scatter(gathered, got, count)
        self.expect(got, self.world * everyone[self.rank], "reduce_scatter")
        exchanged = self.put(0 * everyone)
        group.all_to_all(gathered, exchanged)
        self.expect(exchanged, everyone[[self.rank] * self.world], "all_to_all")
        group.scatter(gathered, got, root=root)
        self.expect(got, everyone[self.rank], "scatter")
        collected = self.put(0 * everyone)
        group.gather(data, collected, root=root)
        if self.rank == root:
            self.expect(collected, everyone, "gather")
        group.broadcast(data, root=root)
        self.expect(data, everyone[root], "broadcast")

    def distributed_messages(self):
        if self.world < 2:
            raise checks.Skip("it needs two ranks")
        count, peer = 1001, self.rank ^ 1
        if peer >= self.world:
            return
        data, got = self.put(self.ints(self.rank, count)), self.put([0] * count)
        if self.rank < peer:
            self.group.send(data, peer)
        else:
            self.group.recv(got, peer)
            self.expect(got, self.ints(peer, count), "recv")
        self.group.send_recv(data, got, peer)
        self.expect(got, self.ints(peer, count), "send_recv")

    def close(self):
        self.cupy.cuda.Device().synchronize()
        self.group.barrier()
        self.group = None  # ends the server process of rank 0
        gc.collect()


def main():
    checks.need("cupy", "numpy")
    gpus = checks.gpu_count()
    if gpus == 0:
        checks.skip("there is no GPU")
    ranks = checks.Checks()
    ranks.run("calls reach Oriel", ranks.check_library)
    suite = Suite(ranks, ranks.rank % gpus)
    ranks.run("NcclCommunicator", suite.start)
    for name in ("all_reduce", "rooted", "gathered", "messages", "split", "ends", "distributed",
                 "distributed_messages"):
        ranks.run(name, getattr(suite, name))
    ranks.finish(suite.close)


if __name__ == "__main__":
    main()
