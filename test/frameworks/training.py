# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""What the scripts that train share: a task in float64, and the same training in one process."""
import torch_ranks

BATCH = 16  # samples of one rank in one step
FEATURES, CLASSES = 24, 5


def samples(count):
    """A made-up task whose samples are the same in every process."""
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
    """Losses of one process that sees whole batches."""
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
    """Mean losses of the ranks' equal shares against those of whole batches, on rank 0.

    `reference` is a function, as it needs to run on rank 0 only.
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
    """The bits of all parameters are the same on all ranks."""
    hashes = ranks.share("parameters", torch_ranks.digest(model.parameters()))
    ranks.expect(len(set(hashes)) == 1, f"{what}: parameters differ between ranks: "
                                        f"{[text[:8] for text in hashes]}")
