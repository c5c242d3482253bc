#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""Trains with Lightning's Trainer, strategy ddp, with ranks from the environment. The losses must
equal those of one process that sees whole batches, within a relative error of RTOL."""
import importlib
import os
import tempfile

import checks
import torch_ranks
import training
from training import BATCH

STEPS = 20
RTOL = 1e-9


def find_lightning():
    """Returns the package, by its newer or its older name; skips the script if there is none."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return checks.skip("there is no Python module lightning or pytorch_lightning")


def make_environment(lightning):
    """Returns an environment with the launcher's ranks. Lightning requires a GPU per rank of a
    node, so each rank is presented as a node with one GPU."""
    base = importlib.import_module(f"{lightning.__name__}.plugins.environments").ClusterEnvironment

    class RankEnvironment(base):
        @property
        def creates_processes_externally(self):
            return True

        @property
        def main_address(self):
            return os.environ["MASTER_ADDR"]

        @property
        def main_port(self):
            return int(os.environ["MASTER_PORT"])

        @staticmethod
        def detect():
            return True

        def world_size(self):
            return int(os.environ["WORLD_SIZE"])

        def set_world_size(self, size):
            pass  # the launcher sets it

        def global_rank(self):
            return int(os.environ["RANK"])

        def set_global_rank(self, rank):
            pass  # the launcher sets it

        def local_rank(self):
            return 0

        def node_rank(self):
            return int(os.environ["RANK"])

    return RankEnvironment()


def make_module(lightning):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = training.make_model()
            self.losses = []

        def training_step(self, batch, _):
            loss = training.loss_of(self.model, *batch)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return training.make_optimizer(self.model)

    return Module()


class Training:
    """The training of one rank."""

    def __init__(self, ranks, device, lightning):
        import torch
        self.torch, self.ranks, self.device, self.lightning = torch, ranks, device, lightning
        self.trainer = self.module = None
        whole = BATCH * ranks.world
        self.inputs, self.targets = training.samples(STEPS * whole)

    def fit(self):
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
        data = TensorDataset(self.inputs, self.targets)
        # The sampler deals samples out one by one, so a step of all ranks takes them in order.
        sampler = DistributedSampler(data, num_replicas=self.ranks.world, rank=self.ranks.rank,
                                     shuffle=False)
        self.module = make_module(self.lightning)
        self.trainer = self.lightning.Trainer(
            accelerator="gpu", devices=[self.device.index], num_nodes=self.ranks.world,
            strategy="ddp", plugins=[make_environment(self.lightning)], max_epochs=1,
            use_distributed_sampler=False, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=tempfile.gettempdir())
        self.trainer.fit(self.module, DataLoader(data, batch_size=BATCH, sampler=sampler))
        self.ranks.expect(self.trainer.world_size == self.ranks.world,
                          f"expected {self.ranks.world} ranks, got {self.trainer.world_size}")
        backend = self.torch.distributed.get_backend()
        self.ranks.expect(backend == "nccl", f"expected the backend nccl, got {backend}")
        training.expect_same_parameters(self.ranks, self.module, f"after {STEPS} steps")

    def compare(self):
        def reference():
            whole = BATCH * self.ranks.world
            alone = training.make_model().to(self.device)
            batches = zip(self.inputs.to(self.device).split(whole),
                          self.targets.to(self.device).split(whole))
            return training.train_alone(alone, batches)
        training.expect_losses(self.ranks, self.module.losses, reference, RTOL)


def main():
    ranks, device = torch_ranks.start()
    work = Training(ranks, device, find_lightning())
    ranks.run("Trainer.fit", work.fit)
    ranks.run("losses of one process", work.compare)

    def close():
        work.trainer = work.module = None
        torch_ranks.close()
    ranks.finish(close)


if __name__ == "__main__":
    main()
