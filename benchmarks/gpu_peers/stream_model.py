#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Models the streamed all-reduce (kernels/algorithms/stream.hpp) on GPUs behind a switch.

Gives the bound set by the GPUs' links, and the effect of ranks that start at different times.
Each rank sends and receives at most --rate; flows on one link share it evenly. The CTAs of a rank
that begin with the same peer are one agent. An agent performs the steps of the algorithm. It sends
chunks, reduces its peers' chunks into all outputs, raises flags and waits for its peers' flags.

Prints microseconds per message: for ranks that start together, and for ranks that start up to
--late microseconds late (the mean of --draws draws). Does so for CTAs that all send to one peer
after the other, and for CTAs that each begin with another peer.
Nothing is measured here; docs/notes/all-reduce.md compares the model with measurements.
"""
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import benchmark  # noqa: E402

CTAS = 128
ENTRY = 3.0  # microseconds from the launch to the first store
FENCE = 2.5  # system-scope fence after a chunk's stores
TRIP = 1.0  # from a flag's store until a peer sees it
COPY = 1.5  # copy of a chunk's results out of their ring


def choice_of(size):
    """Returns (chunk bytes, chunks sent ahead, chunks per ring) of 4 GPUs (built_in_table.cpp)."""
    return (20480, 2, 3) if size <= 12582912 else (32768, 1, 2)


class Agent:
    """The CTAs of one rank that begin with the same peer. `program`: list of (what, argument)."""

    def __init__(self, rank, turn, program):
        self.rank, self.turn, self.program = rank, turn, program
        self.at = 0
        self.left = None  # bytes left of the current flow
        self.until = None  # end of the current sleep
        self.raised = []  # (time when peers see the flag, step)

    def now_in(self, what):
        return self.at < len(self.program) and self.program[self.at][0] == what

    def flow(self):
        return self.program[self.at][1]


def program_of(rank, turn, turns, ranks, size, late):
    chunk, lead, depth = choice_of(size)
    part = size / ranks / CTAS
    chunks = max(1, -(-int(part) // chunk))
    lead = min(lead, chunks)
    peers = [(rank + 1 + i) % ranks for i in range(ranks - 1)]
    program = [("sleep", ENTRY + late)]

    def bytes_of(i):
        return min(chunk, part - i * chunk) * CTAS / turns

    def send(i):
        for k in range(len(peers)):
            program.append(("flow", {peers[(k + turn) % len(peers)]: bytes_of(i)}))

    def raise_flag(step):
        program.extend([("sleep", FENCE), ("raise", step)])

    def retire(i):
        program.extend([("wait", i + lead), ("sleep", COPY)])

    for i in range(lead):
        send(i)
        raise_flag(i)
    retired = 0
    for i in range(chunks):
        if i + lead < chunks:
            while retired + depth <= i + lead:
                retire(retired)
                retired += 1
            send(i + lead)
        program.append(("wait", i))
        program.append(("flow", {peer: bytes_of(i) for peer in peers}))  # results, to all at once
        raise_flag(i + lead)
    for i in range(retired, chunks):
        retire(i)
    return program


def rates_of(flows, ranks, rate):
    """Returns bytes per microsecond of each flow (rank, {peer: bytes}); links are shared evenly."""
    shares = [{peer: part / sum(flow.values()) for peer, part in flow.items()} for _, flow in flows]
    out, into, got = [rate] * ranks, [rate] * ranks, [0.0] * len(flows)
    growing = set(range(len(flows)))
    while growing:
        headroom = []
        for rank in range(ranks):
            senders = sum(flows[j][0] == rank for j in growing)
            weight = sum(shares[j].get(rank, 0) for j in growing)
            headroom += [out[rank] / senders] if senders else []
            headroom += [into[rank] / weight] if weight > 1e-12 else []
        step = min(headroom)
        for j in growing:
            got[j] += step
            out[flows[j][0]] -= step
            for peer, share in shares[j].items():
                into[peer] -= step * share
        growing -= {j for j in growing if out[flows[j][0]] < 1e-6
                    or any(into[peer] < 1e-6 for peer in shares[j])}
    return got


def go_on(agent, agents, now):
    """Finishes the agent's current step if no time has to pass first; returns whether it did."""
    if agent.at == len(agent.program):
        return False
    what, argument = agent.program[agent.at]
    if what == "flow":
        agent.left = sum(argument.values()) if agent.left is None else agent.left
        if agent.left > 1e-6:
            return False
        agent.left = None
    elif what == "sleep":
        agent.until = now + argument if agent.until is None else agent.until
        if now < agent.until - 1e-9:
            return False
        agent.until = None
    elif what == "raise":
        agent.raised.append((now + TRIP, argument))
    elif not all(any(step >= argument and seen <= now + 1e-9 for seen, step in other.raised)
                 for other in agents if other.turn == agent.turn and other is not agent):
        return False
    agent.at += 1
    return True


def simulate(ranks, size, late, turns, rate):
    """Returns the microseconds until the last rank has its result."""
    agents = [Agent(rank, turn, program_of(rank, turn, turns, ranks, size, late[rank]))
              for rank in range(ranks) for turn in range(turns)]
    now = 0.0
    while True:
        while any([go_on(agent, agents, now) for agent in agents]):
            pass
        if all(agent.at == len(agent.program) for agent in agents):
            return now
        moving = [agent for agent in agents if agent.now_in("flow")]
        rates = rates_of([(agent.rank, agent.flow()) for agent in moving], ranks, rate)
        events = [agent.left / speed for agent, speed in zip(moving, rates)]
        events += [agent.until - now for agent in agents if agent.until is not None]
        events += [seen - now for agent in agents for seen, _ in agent.raised if seen > now + 1e-9]
        step = max(min(events), 1e-6)
        for agent, speed in zip(moving, rates):
            agent.left = max(0.0, agent.left - speed * step)
        now += step


def main():
    parser = benchmark.make_parser(__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--sizes", default="8M,16M,32M,64M,128M")
    parser.add_argument("--late", type=float, default=20)
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--rate", type=float, default=375, help="GB/s of a GPU's links one way")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", help="JSON file to write")
    options = parser.parse_args()
    if options.ranks < 2 or options.draws < 1 or options.rate <= 0:
        parser.error("there have to be two ranks, a draw and a rate")
    draw = random.Random(options.seed)
    late = [[draw.random() * options.late for _ in range(options.ranks)]
            for _ in range(options.draws)]
    results = []
    for text in options.sizes.split(","):
        size = benchmark.parse_size(text)
        row = []
        for name, turns in (("one peer after the other", 1),
                            ("each with another", options.ranks - 1)):
            def time(begins, turns=turns):
                return simulate(options.ranks, size, begins, turns, options.rate * 1e3)
            together = time([0.0] * options.ranks)
            apart = sum(time(begins) for begins in late) / options.draws
            parameters = {"ranks": options.ranks, "bytes": size, "order": name,
                          "late_us": options.late}
            results.append(benchmark.result("stream all_reduce", parameters, "us", median=apart,
                                            together_us=together))
            row.append(f"{name}: {together:.0f}, late {apart:.0f} (+{apart - together:.0f})")
        print(f"{text}: " + "; ".join(row), flush=True)
    if options.out:
        benchmark.write_results(options.out, results)


if __name__ == "__main__":
    main()
