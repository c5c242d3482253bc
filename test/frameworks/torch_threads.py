#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""Tests torch.cuda.nccl with ranks that are threads of one process, and with one thread for several
GPUs. Trains with DataParallel, which uses several GPUs in one process. torch.distributed is not
tested here: with NCCL, each of its ranks is a process.

The communicators of threads are made by NCCL's interface and handed to PyTorch. In PyTorch 2.11
torch.cuda.nccl.init_rank, which should do so, always raises SystemError.
"""
import ctypes

import checks
import thread_ranks
import torch_ranks
import training

COUNTS = (1, 1001, 1 << 16, 3 << 18)
STEPS = 10
RTOL = 1e-9
ROOT = 0  # the only root that PyTorch accepts from a thread of one rank
CAPSULE = b"torch.cuda.nccl.Communicator"  # name of PyTorch's capsules of communicators


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Communicator:
    """A communicator of one rank, with the capsule that PyTorch takes."""

    def __init__(self, world, unique_id, rank):
        self.library, self.handle = ctypes.CDLL(None), ctypes.c_void_p()
        self.check(self.library.ncclCommInitRank(
            ctypes.byref(self.handle), world, UniqueId.from_buffer_copy(unique_id), rank))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p,
                                                       ctypes.c_void_p]
        self.capsule = new(self.handle, CAPSULE, None)

    def check(self, status):
        if status != 0:
            self.library.ncclGetLastError.restype = ctypes.c_char_p
            raise RuntimeError(self.library.ncclGetLastError(self.handle).decode())

    def destroy(self):
        self.check(self.library.ncclCommDestroy(self.handle))


class Suite:
    """The calls of all ranks."""

    def __init__(self, ranks, count, gpus):
        import torch
        self.torch, self.ranks, self.world, self.gpus = torch, ranks, count, gpus
        self.nccl = torch.cuda.nccl
        self.threads = thread_ranks.Threads(count)
        self.devices = [torch.device("cuda", rank % gpus) for rank in range(count)]
        self.streams = [torch.cuda.Stream(device) for device in self.devices]
        self.comms = [None] * count

    def on_threads(self, body):
        """Calls body(rank) in the thread of each rank, with its GPU and its stream."""
        def enter(rank):
            with self.torch.cuda.device(self.devices[rank]), \
                    self.torch.cuda.stream(self.streams[rank]):
                body(rank)
        self.threads.run(enter)

    def call(self, rank, function, *arguments, **options):
        """Makes a call of this rank, and waits until it has ended on every rank."""
        self.threads.meet()
        function(*arguments, **options, streams=[self.streams[rank]],
                 comms=[self.comms[rank].capsule])
        self.streams[rank].synchronize()
        self.threads.meet()

    def put(self, rank, values, dtype):
        return torch_ranks.convert(values, dtype).to(self.devices[rank])

    def start(self):
        unique_id = self.nccl.unique_id()

        def body(rank):
            self.comms[rank] = Communicator(self.world, unique_id, rank)
        self.on_threads(body)

    def all_reduce(self):
        torch = self.torch

        def body(rank):
            for dtype in (torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
                          torch.float32, torch.float64):
                for count in COUNTS:
                    data = self.put(rank, torch_ranks.ints(rank, count), dtype)
                    got = torch.zeros_like(data)
                    self.call(rank, self.nccl.all_reduce, [data], [got])
                    total = torch_ranks.convert(torch_ranks.sum_of_ranks(self.world, count), dtype)
                    torch_ranks.expect_same(self.ranks, got, total,
                                            f"rank {rank}: all_reduce of {count}")
        self.on_threads(body)

    def rooted(self):
        dtype = self.torch.float32

        def body(rank):
            for count in COUNTS:
                data = self.put(rank, torch_ranks.ints(rank, count), dtype)
                got = self.torch.zeros_like(data)
                self.call(rank, self.nccl.reduce, [data], got, root=ROOT)
                if rank == ROOT:
                    total = torch_ranks.sum_of_ranks(self.world, count).to(dtype)
                    torch_ranks.expect_same(self.ranks, got, total, f"reduce of {count}")
                self.call(rank, self.nccl.broadcast, [data], root=ROOT)
                torch_ranks.expect_same(self.ranks, data, torch_ranks.ints(ROOT, count).to(dtype),
                                        f"rank {rank}: broadcast of {count}")
        self.on_threads(body)

    def several_gpus(self):
        """Makes the calls of one thread for all GPUs, with communicators that PyTorch makes."""
        count, dtype, gpus = 1001, self.torch.float32, range(self.gpus)
        if self.gpus < 2:
            raise checks.Skip("PyTorch refuses one GPU twice in a call; it needs two")

        def put(values):
            return [torch_ranks.floats(value, self.torch.device("cuda", gpu))
                    for gpu, value in zip(gpus, values)]

        def expect(got, expected, what):
            for gpu in gpus:
                torch_ranks.expect_same(self.ranks, got[gpu], expected[gpu].to(dtype),
                                        f"{what}, GPU {gpu}")
        own = [torch_ranks.ints(gpu, count) for gpu in gpus]
        whole, total = self.torch.cat(own), sum(own)
        data, got = put(own), put([0 * values for values in own])
        self.nccl.all_reduce(data, got)
        expect(got, [total] * self.gpus, "all_reduce")
        root = self.gpus - 1
        self.nccl.reduce(data, got[root], root=root)
        torch_ranks.expect_same(self.ranks, got[root], total.to(dtype), "reduce")
        gathered = put([0 * whole] * self.gpus)
        self.nccl.all_gather(data, gathered)
        expect(gathered, [whole] * self.gpus, "all_gather")
        self.nccl.reduce_scatter(gathered, got)
        expect(got, [self.gpus * values for values in own], "reduce_scatter")
        self.nccl.broadcast(data)
        expect(data, [own[0]] * self.gpus, "broadcast")

    def data_parallel(self):
        """Trains with DataParallel, whose replicas are threads; compares with one GPU."""
        if self.gpus < 2:
            raise checks.Skip("it needs two GPUs")
        whole = training.BATCH * self.gpus
        inputs, targets = (values.to(self.devices[0]) for values in training.samples(STEPS * whole))
        batches = list(zip(inputs.split(whole), targets.split(whole)))
        alone = training.make_model().to(self.devices[0])
        expected = training.train_alone(alone, batches)
        model = self.torch.nn.DataParallel(training.make_model().to(self.devices[0]))
        losses = training.train_alone(model, batches)
        for step, (loss, wanted) in enumerate(zip(losses, expected)):
            self.ranks.expect(abs(loss - wanted) <= RTOL * abs(wanted),
                              f"loss of step {step}: expected {wanted!r}, got {loss!r}")

    def close(self):
        for gpu in range(self.gpus):
            self.torch.cuda.synchronize(gpu)
        self.on_threads(lambda rank: self.comms[rank].destroy())


def main():
    ranks, count, gpus = thread_ranks.start("torch")
    suite = Suite(ranks, count, gpus)
    ranks.run("communicators in threads", suite.start)
    for name in ("all_reduce", "rooted", "several_gpus", "data_parallel"):
        ranks.run(name, getattr(suite, name))
    ranks.finish(suite.close)


if __name__ == "__main__":
    main()
