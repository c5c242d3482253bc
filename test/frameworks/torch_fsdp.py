#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.18]
"""Trains a tiny transformer with FSDP2, and runs a feed-forward layer with tensor parallelism, with
and without sequence parallelism. Both must match the results of one process."""
import copy

import checks
import torch_ranks
import training

STEPS = 6
RTOL = 1e-4
TOKENS, WIDTH, HEADS, LENGTH, BATCH = 50, 32, 4, 12, 4


def make_transformer():
    """Returns a module whose `blocks` FSDP wraps one by one."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
            self.out = nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = (part.reshape(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
                       for part in self.query_key_value(self.norm1(x)).chunk(3, dim=-1))
            scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
            attended = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, WIDTH)
            x = x + self.out(attended)
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(TOKENS, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(2))
            self.head = nn.Linear(WIDTH, TOKENS)

        def forward(self, tokens):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x).flatten(0, 1)

    torch.manual_seed(5)
    return Transformer()


def make_feed_forward(width):
    import torch
    from torch import nn

    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            return self.down(nn.functional.gelu(self.up(self.norm(x))))

    torch.manual_seed(6)
    return FeedForward()


class Suite:
    """The work of one rank."""

    def __init__(self, ranks, device):
        import torch
        self.torch, self.ranks, self.device = torch, ranks, device
        self.rank, self.world = ranks.rank, ranks.world
        self.mesh = None

    def make_mesh(self):
        from torch.distributed.device_mesh import init_device_mesh
        gpus = self.torch.cuda.device_count()
        if self.world > gpus and self.world % gpus != 0:
            raise checks.Skip(f"a mesh refuses {self.world} ranks on {gpus} GPUs")
        self.mesh = init_device_mesh("cuda", (self.world,))

    def need_mesh(self):
        if self.mesh is None:
            raise checks.Skip("there is no mesh")

    def batch(self, step):
        """Returns the whole batch of a step: tokens, and for each token the one to predict."""
        generator = self.torch.Generator().manual_seed(100 + step % 2)
        tokens = self.torch.randint(TOKENS, (BATCH * self.world, LENGTH), generator=generator)
        return tokens.to(self.device), ((tokens * 3 + 1) % TOKENS).to(self.device)

    def fsdp(self):
        from torch.distributed.fsdp import fully_shard
        self.need_mesh()
        alone = make_transformer().to(self.device)
        model = copy.deepcopy(alone)
        for block in model.blocks:
            fully_shard(block, mesh=self.mesh)
        fully_shard(model, mesh=self.mesh)
        optimizer = self.torch.optim.SGD(model.parameters(), lr=0.1)
        part, losses = slice(self.rank * BATCH, (self.rank + 1) * BATCH), []
        for step in range(STEPS):
            tokens, targets = (whole[part] for whole in self.batch(step))
            optimizer.zero_grad()
            loss = training.loss_of(model, tokens, targets.flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

        def reference():
            batches = ((tokens, targets.flatten()) for tokens, targets in
                       (self.batch(step) for step in range(STEPS)))
            return training.train_alone(alone, batches,
                                        self.torch.optim.SGD(alone.parameters(), lr=0.1))
        training.expect_losses(self.ranks, losses, reference, RTOL)

    def close_to(self, got, expected, what):
        got, expected = got.detach().double().cpu(), expected.detach().double().cpu()
        if not self.ranks.expect(got.shape == expected.shape, f"{what}: expected shape "
                                 f"{list(expected.shape)}, got {list(got.shape)}"):
            return
        error = float((got - expected).abs().max() / expected.abs().max())
        self.ranks.expect(error <= RTOL, f"{what}: expected an error up to {RTOL}, got {error:.2e}")

    def layer_and_input(self):
        width = 8 * self.world
        alone = make_feed_forward(width).to(self.device)
        generator = self.torch.Generator().manual_seed(9)
        x = self.torch.randn(3, 4 * self.world, width, generator=generator).to(self.device)
        return alone, x

    def tensor_parallel(self):
        from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                       parallelize_module)
        self.need_mesh()
        alone, x = self.layer_and_input()
        model = parallelize_module(copy.deepcopy(alone), self.mesh,
                                   {"up": ColwiseParallel(), "down": RowwiseParallel()})
        expected, got = alone(x), model(x)
        self.close_to(got, expected, "forward")
        expected.square().sum().backward()
        got.square().sum().backward()
        for name in ("up", "down"):
            gradient = getattr(model, name).weight.grad.full_tensor()
            self.close_to(gradient, getattr(alone, name).weight.grad, f"gradient of {name}")

    def sequence_parallel(self):
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                       SequenceParallel, parallelize_module)
        self.need_mesh()
        alone, x = self.layer_and_input()
        model = parallelize_module(copy.deepcopy(alone), self.mesh, {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1))})
        own = x.chunk(self.world, dim=1)[self.rank].contiguous()
        with self.torch.no_grad():
            got = model(own)
            expected = alone(x).chunk(self.world, dim=1)[self.rank]
        self.close_to(got, expected, "forward")


def main():
    ranks, device = torch_ranks.start()
    suite = Suite(ranks, device)
    ranks.run("init_process_group", lambda: torch_ranks.init(device))
    ranks.run("device mesh", suite.make_mesh)
    ranks.run(f"FSDP2, losses of {STEPS} steps", suite.fsdp)
    ranks.run("tensor parallel", suite.tensor_parallel)
    ranks.run("sequence parallel", suite.sequence_parallel)
    ranks.finish(torch_ranks.close)


if __name__ == "__main__":
    main()
