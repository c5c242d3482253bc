#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18][req:5.19]
"""Tests CuPy's NcclCommunicator with ranks that are threads of one process, and with ranks of one
thread that makes all their calls in groups."""
import thread_ranks
from cupy_ranks import COUNTS, TYPES, Values

LONG = 3 << 18  # elements of a message of 3 MiB


class Suite(Values):
    """The calls of all ranks."""

    def __init__(self, ranks, count, gpus):
        super().__init__(ranks, count)
        self.threads = thread_ranks.Threads(count)
        self.devices = [rank % gpus for rank in range(count)]
        self.comms = [None] * count
        self.streams = []
        for device in self.devices:
            with self.cupy.cuda.Device(device):
                self.streams.append(self.cupy.cuda.Stream(non_blocking=True))

    def on_threads(self, body):
        """Calls body(rank, comm, stream) in the thread of each rank."""
        def enter(rank):
            with self.cupy.cuda.Device(self.devices[rank]), self.streams[rank]:
                body(rank, self.comms[rank], self.streams[rank])
        self.threads.run(enter)

    def call(self, stream, enqueue):
        """Enqueues a call of this rank, and waits until it has ended on every rank."""
        self.threads.meet()
        enqueue()
        stream.synchronize()
        self.threads.meet()

    def start(self):
        unique_id = self.nccl.get_unique_id()

        def body(rank, _, __):
            self.comms[rank] = self.nccl.NcclCommunicator(self.world, unique_id, rank)
        self.on_threads(body)
        for rank, comm in enumerate(self.comms):
            for what, got, expected in (("size", comm.size(), self.world),
                                        ("rank_id", comm.rank_id(), rank),
                                        ("device_id", comm.device_id(), self.devices[rank])):
                self.ranks.expect(got == expected,
                                  f"{what} of rank {rank}: expected {expected}, got {got}")

    def all_reduce(self):
        nccl = self.nccl

        def body(rank, comm, stream):
            for dtype in TYPES:
                for count in (*COUNTS, LONG):
                    data = self.put(self.ints(rank, count), dtype)
                    got = self.put([0] * count, dtype)
                    self.call(stream, lambda: comm.allReduce(
                        data.data.ptr, got.data.ptr, count, self.code(dtype), nccl.NCCL_SUM,
                        stream.ptr))
                    self.expect(got, self.everyone(count).sum(0),
                                f"rank {rank}: allReduce {dtype}, {count}")
        self.on_threads(body)

    def back_to_back(self):
        """Makes many calls without waiting in between, so that threads get ahead of each other."""
        nccl, count, calls = self.nccl, 1001, 100

        def body(rank, comm, stream):
            data, got = self.put([1] * count), [self.put([0] * count) for _ in range(calls)]

            def enqueue():
                for step in range(calls):
                    source = got[step - 1] if step % 10 else data
                    comm.allReduce(source.data.ptr, got[step].data.ptr, count, nccl.NCCL_FLOAT32,
                                   nccl.NCCL_MAX if step % 10 else nccl.NCCL_SUM, stream.ptr)
            self.call(stream, enqueue)
            for step in range(calls):
                self.expect(got[step], [self.world] * count, f"rank {rank}: call {step}")
        self.on_threads(body)

    def messages(self):
        """Sends in a ring, and between all pairs, in groups of each thread."""
        nccl, world = self.nccl, self.world

        def body(rank, comm, stream):
            for count in (*COUNTS, LONG):
                data = self.put(self.ints(rank, count))
                got = [self.put([0] * count) for _ in range(world)]

                def exchange(peers):
                    nccl.groupStart()
                    for to, source in peers:
                        comm.send(data.data.ptr, count, nccl.NCCL_FLOAT32, to, stream.ptr)
                        comm.recv(got[source].data.ptr, count, nccl.NCCL_FLOAT32, source,
                                  stream.ptr)
                    nccl.groupEnd()
                before = (rank - 1) % world
                self.call(stream, lambda: exchange([((rank + 1) % world, before)]))
                self.expect(got[before], self.ints(before, count), f"rank {rank}: ring of {count}")
                self.call(stream, lambda: exchange([(peer, peer) for peer in range(world)]))
                for peer in range(world):
                    self.expect(got[peer], self.ints(peer, count),
                                f"rank {rank}: {count} from {peer}, all pairs")
        self.on_threads(body)

    def send_alone(self):
        """Sends from the first rank to the last, each call without a group."""
        nccl, last = self.nccl, self.world - 1
        if last == 0:
            return

        def body(rank, comm, stream):
            for count in (*COUNTS, LONG):
                data, got = self.put(self.ints(rank, count)), self.put([0] * count)

                def enqueue():
                    if rank == 0:
                        comm.send(data.data.ptr, count, nccl.NCCL_FLOAT32, last, stream.ptr)
                    elif rank == last:
                        comm.recv(got.data.ptr, count, nccl.NCCL_FLOAT32, 0, stream.ptr)
                self.call(stream, enqueue)
                if rank == last:
                    self.expect(got, self.ints(0, count), f"recv of {count}")
        self.on_threads(body)

    def split(self):
        nccl, count = self.nccl, 1001

        def body(rank, comm, stream):
            members = list(range(rank % 2, self.world, 2))
            part = comm.commSplit(rank % 2, rank)
            self.ranks.expect(part.size() == len(members),
                              f"size: expected {len(members)}, got {part.size()}")
            data, got = self.put(self.ints(rank, count)), self.put([0] * count)
            self.call(stream, lambda: part.allReduce(data.data.ptr, got.data.ptr, count,
                                                     nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr))
            self.expect(got, self.everyone(count)[members].sum(0), f"rank {rank}: half")
            part.destroy()
        self.on_threads(body)

    def one_thread(self):
        """Makes all ranks in one thread by initAll, and their calls in groups."""
        nccl, cuda = self.nccl, self.cupy.cuda
        comms = nccl.NcclCommunicator.initAll(self.devices)
        for count in COUNTS:
            data, got = [], []
            for rank, device in enumerate(self.devices):
                with cuda.Device(device), self.streams[rank]:
                    data.append(self.put(self.ints(rank, count)))
                    got.append(self.put([0] * count))
            nccl.groupStart()
            for rank, comm in enumerate(comms):
                with cuda.Device(self.devices[rank]):
                    comm.allReduce(data[rank].data.ptr, got[rank].data.ptr, count,
                                   nccl.NCCL_FLOAT32, nccl.NCCL_SUM, self.streams[rank].ptr)
            nccl.groupEnd()
            for stream in self.streams:
                stream.synchronize()
            for rank, device in enumerate(self.devices):
                with cuda.Device(device), self.streams[rank]:
                    self.expect(got[rank], self.everyone(count).sum(0),
                                f"rank {rank}: allReduce of {count}")
        for comm in comms:
            comm.destroy()

    def close(self):
        self.on_threads(lambda rank, comm, stream: comm.destroy())
        for stream in self.streams:
            stream.synchronize()


def main():
    ranks, count, gpus = thread_ranks.start("cupy", "numpy")
    suite = Suite(ranks, count, gpus)
    ranks.run("NcclCommunicator in threads", suite.start)
    for name in ("all_reduce", "back_to_back", "messages", "send_alone", "split", "one_thread"):
        ranks.run(name, getattr(suite, name))
    ranks.finish(suite.close)


if __name__ == "__main__":
    main()
