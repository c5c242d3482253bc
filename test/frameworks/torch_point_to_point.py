#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""Tests point-to-point calls of torch.distributed over the backend nccl, and the object
collectives, which send pickles in tensors of bytes."""
import checks
import torch_ranks
from torch_ranks import expect_same, floats, ints

COUNTS = (1, 1001, 1 << 20)


class Suite:
    """The calls of one rank."""

    def __init__(self, ranks, device):
        import torch
        import torch.distributed as dist
        self.torch, self.dist, self.ranks, self.device = torch, dist, ranks, device
        self.rank, self.world = ranks.rank, ranks.world
        self.next, self.previous = (self.rank + 1) % self.world, (self.rank - 1) % self.world

    def need_two(self):
        if self.world < 2:
            raise checks.Skip("it needs two ranks")

    def chain(self):
        """Passes data around the ring by blocking calls, until rank 0 gets it back."""
        self.need_two()
        for count in COUNTS:
            data = floats(ints(0, count), self.device) if self.rank == 0 else \
                self.torch.zeros(count, device=self.device)
            if self.rank != 0:
                self.dist.recv(data, src=self.previous)
                data += 1
            self.dist.send(data, dst=self.next)
            if self.rank == 0:
                self.dist.recv(data, src=self.previous)
            steps = self.world - 1 if self.rank == 0 else self.rank
            expect_same(self.ranks, data, (ints(0, count) + steps).float(), f"chain of {count}")

    def pairs(self):
        """Exchanges several messages at once between neighbours, by isend and irecv."""
        self.need_two()
        peer = self.rank ^ 1
        if peer >= self.world:
            return
        outgoing = [floats(ints(self.rank, count, 1), self.device) for count in COUNTS]
        incoming = [self.torch.zeros(count, device=self.device) for count in COUNTS]
        works = []
        for first in (True, False):  # both ranks of a pair list the messages in the same order
            for sent, got in zip(outgoing, incoming):
                works.append(self.dist.isend(sent, peer) if first == (self.rank % 2 == 0)
                             else self.dist.irecv(got, peer))
        for work in works:
            work.wait()
        for count, got in zip(COUNTS, incoming):
            expect_same(self.ranks, got, ints(peer, count, 1).float(), f"from {peer}, {count}")

    def ring(self):
        """Sends and receives at once on every rank, by batch_isend_irecv."""
        self.need_two()
        for dtype in (self.torch.float32, self.torch.uint8, self.torch.int64):
            outgoing = [torch_ranks.convert(ints(self.rank, count, 2), dtype).to(self.device)
                        for count in COUNTS]
            incoming = [self.torch.zeros(count, dtype=dtype, device=self.device)
                        for count in COUNTS]
            operations = []
            for sent, got in zip(outgoing, incoming):
                operations.append(self.dist.P2POp(self.dist.isend, sent, self.next))
                operations.append(self.dist.P2POp(self.dist.irecv, got, self.previous))
            for work in self.dist.batch_isend_irecv(operations):
                work.wait()
            for count, got in zip(COUNTS, incoming):
                expected = torch_ranks.convert(ints(self.previous, count, 2), dtype)
                expect_same(self.ranks, got, expected, f"ring, {dtype}, {count}")

    def all_pairs(self):
        """Sends messages of unequal length from every rank to every other rank, in one batch."""
        self.need_two()
        others = [rank for rank in range(self.world) if rank != self.rank]

        def length(source, target):
            return 100 * source + 10 * target + 1
        operations, incoming = [], {}
        for peer in others:
            data = floats(ints(self.rank, length(self.rank, peer), peer), self.device)
            incoming[peer] = self.torch.zeros(length(peer, self.rank), device=self.device)
            operations.append(self.dist.P2POp(self.dist.irecv, incoming[peer], peer))
            operations.append(self.dist.P2POp(self.dist.isend, data, peer))
        for work in self.dist.batch_isend_irecv(operations):
            work.wait()
        for peer, got in incoming.items():
            expected = ints(peer, length(peer, self.rank), self.rank).float()
            expect_same(self.ranks, got, expected, f"from {peer}")

    def beside_collectives(self):
        """Alternates messages and all-reduces of one group, without waiting between them."""
        self.need_two()
        results = []
        for turn in range(10):
            sent = floats(ints(self.rank, 1001, turn), self.device)
            got = self.torch.zeros(1001, device=self.device)
            for work in self.dist.batch_isend_irecv(
                    [self.dist.P2POp(self.dist.isend, sent, self.next),
                     self.dist.P2POp(self.dist.irecv, got, self.previous)]):
                work.wait()
            self.dist.all_reduce(sent)
            results.append((sent, got))
        for turn, (total, got) in enumerate(results):
            expect_same(self.ranks, total, torch_ranks.sum_of_ranks(self.world, 1001, turn).float(),
                        f"all_reduce, turn {turn}")
            expect_same(self.ranks, got, ints(self.previous, 1001, turn).float(),
                        f"message, turn {turn}")

    def value(self, rank):
        return {"rank": rank, "text": "x" * (100 * rank + 1), "list": list(range(rank))}

    def expect_object(self, got, expected, what):
        self.ranks.expect(got == expected, f"{what}: expected {expected!r}, got {got!r}")

    def objects(self):
        everyone = [self.value(rank) for rank in range(self.world)]
        gathered = [None] * self.world
        self.dist.all_gather_object(gathered, self.value(self.rank))
        self.expect_object(gathered, everyone, "all_gather_object")

        root = self.world - 1
        at_root = [None] * self.world if self.rank == root else None
        self.dist.gather_object(self.value(self.rank), at_root, dst=root)
        if self.rank == root:
            self.expect_object(at_root, everyone, "gather_object")

        some = [self.value(5), "text", 3.5] if self.rank == root else [None] * 3
        self.dist.broadcast_object_list(some, src=root, device=self.device)
        self.expect_object(some, [self.value(5), "text", 3.5], "broadcast_object_list")

        own = [None]
        self.dist.scatter_object_list(own, everyone if self.rank == 0 else None, src=0)
        self.expect_object(own, [everyone[self.rank]], "scatter_object_list")

    def object_messages(self):
        self.need_two()
        if self.rank == 0:
            self.dist.send_object_list([self.value(7), "end"], dst=1, device=self.device)
        elif self.rank == 1:
            got = [None, None]
            self.dist.recv_object_list(got, src=0, device=self.device)
            self.expect_object(got, [self.value(7), "end"], "recv_object_list")


def main():
    ranks, device = torch_ranks.start()
    suite = Suite(ranks, device)
    ranks.run("init_process_group", lambda: torch_ranks.init(device))
    ranks.run("send and recv", suite.chain)
    ranks.run("isend and irecv", suite.pairs)
    ranks.run("batch_isend_irecv ring", suite.ring)
    ranks.run("batch_isend_irecv all pairs", suite.all_pairs)
    ranks.run("messages beside collectives", suite.beside_collectives)
    ranks.run("objects", suite.objects)
    ranks.run("messages of objects", suite.object_messages)
    ranks.finish(torch_ranks.close)


if __name__ == "__main__":
    main()
