#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""Trains a small convolutional network on handwritten digits with DistributedDataParallel, in
float64. After each step all ranks must hold the same bits. The losses must equal those of one
process that sees the whole batch, within a relative error of RTOL."""
import copy

import torch_ranks
import training

STEPS = 100
BATCH = 32  # samples per rank
BUCKET_MB = 0.01  # small enough for several all-reduces per step
RTOL = 1e-5


def make_network():
    from torch import nn
    import torch
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 16, 3), nn.ReLU(),
                         nn.Flatten(), nn.Linear(256, 48), nn.ReLU(), nn.Linear(48, 10)).double()


class Training:
    """The training of one rank."""

    def __init__(self, ranks, device):
        import torch
        self.torch, self.ranks, self.device = torch, ranks, device
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        self.alone = self.model = self.wrapped = None
        self.losses = []

    def load(self):
        from sklearn.datasets import load_digits
        digits = load_digits()
        self.images = self.torch.tensor(digits.images / 16.0, device=self.device).unsqueeze(1)
        self.labels = self.torch.tensor(digits.target, dtype=self.torch.int64, device=self.device)
        self.alone = make_network().to(self.device)

    def batch(self, step, first, count):
        """Returns `count` samples of a step's whole batch, from `first` on."""
        places = step * BATCH * self.ranks.world + first + self.torch.arange(count)
        places = places.to(self.device) % len(self.labels)
        return self.images[places], self.labels[places]

    def wrap(self):
        from torch.nn.parallel import DistributedDataParallel
        self.model = copy.deepcopy(self.alone)
        if self.ranks.rank != 0:  # the parameters of rank 0 must replace these
            with self.torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.add_(1.0)
        self.wrapped = DistributedDataParallel(self.model, device_ids=[self.device.index],
                                               bucket_cap_mb=BUCKET_MB)
        training.expect_same_parameters(self.ranks, self.model, "at the start")

    def same_bits(self, step):
        """Checks that all ranks hold the same parameters, by an all-gather of their bits."""
        import torch.distributed as dist
        own = self.torch.cat([parameter.detach().reshape(-1)
                              for parameter in self.model.parameters()]).view(self.torch.int64)
        everyone = self.torch.empty(self.ranks.world, own.numel(), dtype=own.dtype,
                                    device=self.device)
        dist.all_gather_into_tensor(everyone, own)
        different = int((everyone != own).sum())
        self.ranks.expect(different == 0,
                          f"step {step}: {different} values differ from those of other ranks")

    def train(self):
        optimizer = training.make_optimizer(self.model, 0.05)
        for step in range(STEPS):
            inputs, targets = self.batch(step, self.ranks.rank * BATCH, BATCH)
            optimizer.zero_grad()
            loss = training.loss_of(self.wrapped, inputs, targets)
            loss.backward()
            optimizer.step()
            self.losses.append(loss.item())
            self.same_bits(step)
        training.expect_same_parameters(self.ranks, self.model, f"after {STEPS} steps")

    def compare(self):
        def reference():
            whole = BATCH * self.ranks.world
            batches = (self.batch(step, 0, whole) for step in range(STEPS))
            return training.train_alone(self.alone, batches,
                                        training.make_optimizer(self.alone, 0.05))
        training.expect_losses(self.ranks, self.losses, reference, RTOL)


def main():
    ranks, device = torch_ranks.start("sklearn")
    work = Training(ranks, device)
    ranks.run("init_process_group", lambda: torch_ranks.init(device))
    ranks.run("digits", work.load)
    ranks.run("parameters of rank 0 everywhere", work.wrap)
    ranks.run(f"the same bits after each of {STEPS} steps", work.train)
    ranks.run("losses of one process", work.compare)

    def close():
        work.wrapped = None  # freed before the group that it uses
        torch_ranks.close()
    ranks.finish(close)


if __name__ == "__main__":
    main()
