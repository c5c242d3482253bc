#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""Trains with Accelerate, with ranks from the environment as `accelerate launch` sets them. The
losses must equal those of one process that sees whole batches, within a relative error of RTOL."""
import os

import torch_ranks
import training
from training import BATCH

STEPS = 20
RTOL = 1e-9


class Training:
    """The training of one rank."""

    def __init__(self, ranks, device):
        import torch
        self.torch, self.ranks, self.device = torch, ranks, device
        self.accelerator = self.model = None

    def start(self):
        # Accelerate derives the GPU from LOCAL_RANK; here ranks may share a GPU.
        os.environ["LOCAL_RANK"] = str(self.device.index)
        from accelerate import Accelerator
        self.accelerator = Accelerator()
        self.ranks.expect(self.accelerator.num_processes == self.ranks.world,
                          f"expected {self.ranks.world} processes, got "
                          f"{self.accelerator.num_processes}")
        self.ranks.expect(self.accelerator.device == self.device,
                          f"expected {self.device}, got {self.accelerator.device}")

    def train(self):
        from torch.utils.data import DataLoader, TensorDataset
        whole = BATCH * self.ranks.world
        inputs, targets = training.samples(STEPS * whole)
        model = training.make_model()
        # Each rank gets every world-th batch, so one step takes `whole` samples in order.
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=BATCH, shuffle=False)
        self.model, optimizer, loader = self.accelerator.prepare(
            model, training.make_optimizer(model), loader)
        losses = []
        for batch_inputs, batch_targets in loader:
            optimizer.zero_grad()
            loss = training.loss_of(self.model, batch_inputs, batch_targets)
            self.accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
        training.expect_same_parameters(self.ranks, self.model, f"after {STEPS} steps")

        def reference():
            alone = training.make_model().to(self.device)
            batches = zip(inputs.to(self.device).split(whole), targets.to(self.device).split(whole))
            return training.train_alone(alone, batches)
        training.expect_losses(self.ranks, losses, reference, RTOL)

    def gather(self):
        own = self.torch.full((3,), float(self.ranks.rank), device=self.device)
        gathered = self.accelerator.gather(own)
        expected = self.torch.arange(self.ranks.world).repeat_interleave(3).float()
        torch_ranks.expect_same(self.ranks, gathered, expected, "gather")
        mean = self.accelerator.reduce(own, reduction="mean")
        torch_ranks.expect_same(self.ranks, mean, self.torch.full((3,), expected.mean().item()),
                                "reduce to the mean", rtol=1e-6)
        self.accelerator.wait_for_everyone()


def run(ranks, device):
    """Runs the checks of one rank, and ends the process."""
    work = Training(ranks, device)
    ranks.run("Accelerator", work.start)
    ranks.run("training", work.train)
    ranks.run("gather and reduce", work.gather)

    def close():
        work.model = None
        work.accelerator.end_training()
        torch_ranks.close()
    ranks.finish(close)


def main():
    run(*torch_ranks.start("accelerate"))


if __name__ == "__main__":
    main()
