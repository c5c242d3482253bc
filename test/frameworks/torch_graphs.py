#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""Tests CUDA graphs of collectives: replayed many times, mixed with calls outside graphs."""
import gc

import torch_ranks
from torch_ranks import expect_same, floats, ints, sum_of_ranks

COUNT = 4099
REPLAYS = 40


class Suite:
    """The graphs of one rank."""

    def __init__(self, ranks, device):
        import torch
        import torch.distributed as dist
        self.torch, self.dist, self.ranks, self.device = torch, dist, ranks, device
        self.rank, self.world = ranks.rank, ranks.world

    def capture(self, body):
        """Runs `body` once outside a graph, then returns a graph of it."""
        side = self.torch.cuda.Stream()
        side.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(side):
            body()
        self.torch.cuda.current_stream().wait_stream(side)
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        # thread_local: PyTorch's threads query events during the capture.
        with self.torch.cuda.graph(graph, capture_error_mode="thread_local"):
            body()
        return graph

    def buffer(self, count=COUNT):
        return self.torch.zeros(count, device=self.device)

    def load(self, buffer, seed):
        buffer.copy_(floats(ints(self.rank, buffer.numel(), seed), self.device))

    def one_graph(self):
        data = self.buffer()
        graph = self.capture(lambda: self.dist.all_reduce(data))
        for seed in range(REPLAYS):
            self.load(data, seed)
            graph.replay()
            expect_same(self.ranks, data, sum_of_ranks(self.world, COUNT, seed).float(),
                        f"replay {seed}")

    def beside_eager(self):
        """Alternates replays and eager calls, without host synchronisation between them."""
        data = self.buffer()
        graph = self.capture(lambda: self.dist.all_reduce(data))
        results = []
        for seed in range(REPLAYS):
            self.load(data, seed)
            eager = floats(ints(self.rank, COUNT, seed + 1), self.device)
            if seed % 2:
                self.dist.all_reduce(eager)
            graph.replay()
            if seed % 2 == 0:
                self.dist.all_reduce(eager)
            results.append((data.clone(), eager))
        for seed, (replayed, eager) in enumerate(results):
            expect_same(self.ranks, replayed, sum_of_ranks(self.world, COUNT, seed).float(),
                        f"replay {seed}")
            expect_same(self.ranks, eager, sum_of_ranks(self.world, COUNT, seed + 1).float(),
                        f"eager call {seed}")

    def two_graphs(self):
        """Replays two graphs in turn, whose calls differ in size."""
        buffers = [self.buffer(COUNT), self.buffer(1 << 18)]
        graphs = [self.capture(lambda data=data: self.dist.all_reduce(data)) for data in buffers]
        results = []
        for seed in range(REPLAYS):
            which = (seed // 3) % 2
            self.load(buffers[which], seed)
            graphs[which].replay()
            results.append((which, buffers[which][:COUNT].clone()))
        for seed, (which, got) in enumerate(results):
            expected = sum_of_ranks(self.world, buffers[which].numel(), seed)[:COUNT].float()
            expect_same(self.ranks, got, expected, f"graph {which}, replay {seed}")

    def many_calls(self):
        """Replays one graph of several kinds of calls, with kernels between the calls."""
        world, dist = self.world, self.dist
        data, gathered = self.buffer(), self.buffer(COUNT * world)
        scattered, exchanged = self.buffer(), self.buffer(COUNT * world)
        received, first = self.buffer(), self.buffer()
        after, before = (self.rank + 1) % world, (self.rank - 1) % world

        def body():
            dist.all_gather_into_tensor(gathered, data)
            dist.reduce_scatter_tensor(scattered, gathered * 2)
            dist.all_to_all_single(exchanged, gathered)
            first.copy_(data)
            dist.broadcast(first, src=world - 1)
            if world > 1:
                for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, data, after),
                                                    dist.P2POp(dist.irecv, received, before)]):
                    work.wait()
            data.mul_(3)
            dist.all_reduce(data)
        graph = self.capture(body)
        for seed in range(REPLAYS // 2):
            self.load(data, seed)
            graph.replay()
            sources = [ints(rank, COUNT, seed) for rank in range(world)]
            everyone = self.torch.cat(sources).float()
            own = sources[self.rank].float()
            expect_same(self.ranks, gathered, everyone, f"all_gather, replay {seed}")
            expect_same(self.ranks, scattered, 2 * world * own, f"reduce_scatter, replay {seed}")
            expect_same(self.ranks, exchanged, own.repeat(world), f"all_to_all, replay {seed}")
            expect_same(self.ranks, first, sources[-1].float(), f"broadcast, replay {seed}")
            if world > 1:
                expect_same(self.ranks, received, sources[before].float(), f"ring, replay {seed}")
            expect_same(self.ranks, data, 3 * sum(sources).float(), f"all_reduce, replay {seed}")


def main():
    ranks, device = torch_ranks.start()
    suite = Suite(ranks, device)
    ranks.run("init_process_group", lambda: torch_ranks.init(device))
    for name in ("one_graph", "beside_eager", "two_graphs", "many_calls"):
        def check(name=name):
            getattr(suite, name)()
            gc.collect()  # frees graphs before the communicator whose calls they hold
            suite.torch.cuda.synchronize()
        ranks.run(name, check)
    ranks.finish(torch_ranks.close)


if __name__ == "__main__":
    main()
