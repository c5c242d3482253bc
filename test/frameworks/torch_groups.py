#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""Tests process groups: new_group, split_group, DeviceMesh, two groups on two streams, and a
restart. The default group is bound to a device, so that PyTorch splits communicators if it can."""
import checks
import torch_ranks
from torch_ranks import expect_same, floats, ints

COUNT = 1001


class Suite:
    """The calls of one rank."""

    def __init__(self, ranks, device):
        import torch
        import torch.distributed as dist
        self.torch, self.dist, self.ranks, self.device = torch, dist, ranks, device
        self.rank, self.world = ranks.rank, ranks.world

    def data(self, seed=0):
        return floats(ints(self.rank, COUNT, seed), self.device)

    def expect_sum(self, got, members, what, seed=0):
        expected = sum(ints(rank, COUNT, seed) for rank in members).float()
        expect_same(self.ranks, got, expected, what)

    def reduce_in(self, group, members, what, seed=0):
        data = self.data(seed)
        self.dist.all_reduce(data, group=group)
        self.expect_sum(data, members, what, seed)

    def new_group(self):
        halves = [list(range(0, self.world, 2)), list(range(1, self.world, 2))]
        for members in (half for half in halves if half):  # every rank creates every group
            group = self.dist.new_group(members)
            if self.rank in members:
                self.reduce_in(group, members, f"new_group {members}")
                root = members[-1]
                data = self.data(3)
                self.dist.broadcast(data, src=root, group=group)
                expect_same(self.ranks, data, ints(root, COUNT, 3).float(),
                            f"broadcast of {root} in {members}")
        everyone = list(range(self.world))
        group = self.dist.new_group(everyone)
        self.reduce_in(group, everyone, "new_group of everyone")
        self.reduce_in(None, everyone, "the default group beside others")

    def split_group(self):
        everyone = list(range(self.world))
        middle = (self.world + 1) // 2
        parts = [part for part in (everyone[:middle], everyone[middle:]) if part]
        for split in ([everyone], parts, [everyone[:middle]]):
            group = self.dist.split_group(split_ranks=split)
            members = next((part for part in split if self.rank in part), None)
            self.ranks.expect((group is None) == (members is None),
                              f"split_group {split}: expected members {members}, got {group}")
            if group is not None and members is not None:
                self.reduce_in(group, members, f"split_group {split}")
        self.reduce_in(None, everyone, "the parent after its splits")

    def device_mesh(self):
        from torch.distributed.device_mesh import init_device_mesh
        gpus = self.torch.cuda.device_count()
        if self.world > gpus and self.world % gpus != 0:
            raise checks.Skip(f"a mesh refuses {self.world} ranks on {gpus} GPUs")
        if self.world >= 4 and self.world % 2 == 0:
            columns = self.world // 2
            mesh = init_device_mesh("cuda", (2, columns), mesh_dim_names=("row", "column"))
            line, place = divmod(self.rank, columns)
            teams = {"row": [place, columns + place],
                     "column": list(range(line * columns, (line + 1) * columns))}
        else:
            mesh = init_device_mesh("cuda", (self.world,), mesh_dim_names=("row",))
            teams = {"row": list(range(self.world))}
        for name, members in teams.items():
            self.reduce_in(mesh.get_group(name), members, f"dimension {name} of the mesh")

    def two_streams(self):
        """Issues calls of two groups in turn on two streams, without waiting for them."""
        everyone = list(range(self.world))
        groups = [self.dist.new_group(everyone) for _ in range(2)]
        streams = [self.torch.cuda.Stream() for _ in range(2)]
        results = []
        for turn in range(20):
            for which in (turn % 2, 1 - turn % 2):
                with self.torch.cuda.stream(streams[which]):
                    data = self.data(2 * turn + which)
                    self.dist.all_reduce(data, group=groups[which])
                    results.append((2 * turn + which, data))
        self.torch.cuda.synchronize()
        for seed, data in results:
            self.expect_sum(data, everyone, f"group {seed % 2}, turn {seed // 2}", seed)
        for group in groups:
            self.dist.destroy_process_group(group)

    def start_again(self):
        everyone = list(range(self.world))
        for turn in range(3):
            self.torch.cuda.synchronize()
            self.dist.barrier()
            self.dist.destroy_process_group()
            self.ranks.expect(not self.dist.is_initialized(), "a destroyed group is still there")
            torch_ranks.init(self.device, store=torch_ranks.file_store(self.ranks, f"again{turn}"),
                             rank=self.rank, world_size=self.world)
            self.reduce_in(None, everyone, f"start {turn + 2}", turn)


def main():
    ranks, device = torch_ranks.start()
    suite = Suite(ranks, device)
    ranks.run("init_process_group", lambda: torch_ranks.init(device))
    for name in ("new_group", "split_group", "device_mesh", "two_streams", "start_again"):
        ranks.run(name, getattr(suite, name))
    ranks.finish(torch_ranks.close)


if __name__ == "__main__":
    main()
