# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the training scripts: a task in float64, and the same training in one process."""
import torch_ranks

BATCH = 16  # samples per rank and step
FEATURES, CLASSES = 24, 5


def samples(count):
    """Returns the inputs and targets of a synthetic task, the same in every process."""
    import torch
    generator = torch.Generator().manual_seed(20)
    inputs = torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)
    truth = torch.randn(FEATURES, CLASSES, generator=generator, dtype=torch.float64)
    return inputs, (inputs @ truth).argmax(1)


def make_model():
    import torch
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.Tanh(),
                               torch.nn.Linear(32, CLASSES)).double()


def make_optimizer(model, rate=0.2):
    import torch
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def loss_of(model, inputs, targets):
    import torch
    return torch.nn.functional.cross_entropy(model(inputs), targets)


def train_alone(model, batches, optimizer=None):
    """Trains in one process that sees whole batches; returns the losses."""
    optimizer = optimizer or make_optimizer(model)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def expect_losses(ranks, own, reference, rtol):
    """Compares the mean losses of the ranks' equal shares with those of whole batches, on rank 0.

    `reference` is a function, because only rank 0 needs to run it.
    """
    everyone = ranks.share("losses", own)
    if ranks.rank != 0:
        return
    means = [sum(step) / ranks.world for step in zip(*everyone)]
    expected = reference()
    ranks.expect(len(means) == len(expected) > 0,
                 f"steps: expected {len(expected)}, got {len(means)}")
    for step, (mean, alone) in enumerate(zip(means, expected)):
        ranks.expect(abs(mean - alone) <= rtol * abs(alone),
                     f"loss of step {step}: expected {alone!r}, got {mean!r}")
    if means:
        ranks.note(f"{len(means)} steps, loss {means[0]:.4f} to {means[-1]:.4f}")
        ranks.expect(means[-1] < means[0], f"the loss did not fall: {means[0]} to {means[-1]}")


def expect_same_parameters(ranks, model, what):
    """Checks that all ranks hold the same bits of all parameters."""
    hashes = ranks.share("parameters", torch_ranks.digest(model.parameters()))
    ranks.expect(len(set(hashes)) == 1, f"{what}: parameters differ between ranks: "
                                        f"{[text[:8] for text in hashes]}")
