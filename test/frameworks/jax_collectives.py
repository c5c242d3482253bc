#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.19]
"""Tests JAX with one process per rank: collectives under jit and shard_map, and gradient steps. The
compiler adds an all-reduce to these steps."""
import os

import checks

COUNT = 1001
LARGE = 1 << 18
# Values that are reduced in these types are small integers, exact in each of them.
TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")


class Suite:
    """The calls of one rank."""

    def __init__(self, ranks, gpu):
        import numpy
        self.numpy, self.ranks, self.gpu = numpy, ranks, gpu
        self.rank, self.world = ranks.rank, ranks.world
        self.jax = self.mesh = self.spec = self.sharding = None

    def start(self):
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # ranks may share a GPU
        import jax
        self.jax = jax
        jax.config.update("jax_enable_x64", True)
        address = f"{os.environ.get('MASTER_ADDR', '127.0.0.1')}:{os.environ['MASTER_PORT']}"
        jax.distributed.initialize(address, self.world, self.rank, local_device_ids=[self.gpu])
        devices = jax.devices()
        self.ranks.note(f"JAX {jax.__version__}, {devices}")
        if devices[0].platform != "gpu":
            raise RuntimeError(f"JAX has no GPU: {devices}")
        self.ranks.expect(len(devices) == self.world,
                          f"expected {self.world} devices, got {len(devices)}")
        self.mesh = jax.sharding.Mesh(self.numpy.array(devices), ("x",))
        self.spec = jax.sharding.PartitionSpec("x")
        self.sharding = jax.sharding.NamedSharding(self.mesh, self.spec)

    def ints(self, rank, count, seed=0):
        places = self.numpy.arange(count)
        return (places * 7 + places // 11 + rank * 3 + seed * 5) % 5

    def everyone(self, count, seed=0):
        return self.numpy.stack([self.ints(rank, count, seed) for rank in range(self.world)])

    def mapped(self, body):
        """Returns a compiled function that applies `body` to each rank's shard."""
        return self.jax.jit(self.jax.shard_map(body, mesh=self.mesh, in_specs=self.spec,
                                               out_specs=self.spec, check_vma=False))

    def put(self, values, dtype="float32"):
        own = self.numpy.asarray(values).astype(self.jax.numpy.dtype(dtype))
        return self.jax.make_array_from_process_local_data(self.sharding, own)

    def own_part(self, result):
        return self.numpy.asarray(result.addressable_shards[0].data).astype("float64")

    def expect(self, result, expected, what, rtol=0.0):
        got, expected = self.own_part(result), self.numpy.asarray(expected, dtype="float64")
        if not self.ranks.expect(got.shape == expected.shape,
                                 f"{what}: expected shape {expected.shape}, got {got.shape}"):
            return
        wrong = self.numpy.flatnonzero(abs(got - expected) > rtol * abs(expected))
        if len(wrong):
            place = wrong[0]
            self.ranks.expect(False, f"{what}: {len(wrong)} of {got.size} wrong, at {place} "
                                     f"expected {expected.flat[place]}, got {got.flat[place]}")

    def psum(self):
        call = self.mapped(lambda x: self.jax.lax.psum(x, "x"))
        for dtype in TYPES:
            for count in (1, COUNT) if dtype != "float32" else (1, COUNT, LARGE):
                result = call(self.put(self.ints(self.rank, count), dtype))
                self.expect(result, self.everyone(count).sum(0), f"psum {dtype} of {count}")

    def other_reductions(self):
        lax, data = self.jax.lax, self.put(self.ints(self.rank, COUNT))
        everyone = self.everyone(COUNT)
        for name, body, expected, rtol in (
                ("pmax", lambda x: lax.pmax(x, "x"), everyone.max(0), 0.0),
                ("pmin", lambda x: lax.pmin(x, "x"), everyone.min(0), 0.0),
                ("pmean", lambda x: lax.pmean(x, "x"), everyone.mean(0), 1e-6)):
            self.expect(self.mapped(body)(data), expected, name, rtol)

    def all_gather(self):
        call = self.mapped(lambda x: self.jax.lax.all_gather(x, "x", tiled=True))
        for dtype in ("float32", "bfloat16", "uint8", "int64"):
            result = call(self.put(self.ints(self.rank, COUNT), dtype))
            self.expect(result, self.everyone(COUNT).reshape(-1), f"all_gather {dtype}")

    def psum_scatter(self):
        call = self.mapped(lambda x: self.jax.lax.psum_scatter(x, "x", tiled=True))
        for dtype in ("float32", "bfloat16", "int32"):
            result = call(self.put(self.ints(self.rank, COUNT * self.world), dtype))
            total = self.everyone(COUNT * self.world).sum(0)
            self.expect(result, total[self.rank * COUNT:(self.rank + 1) * COUNT],
                        f"psum_scatter {dtype}")

    def all_to_all(self):
        call = self.mapped(lambda x: self.jax.lax.all_to_all(x, "x", 0, 0, tiled=True))
        for dtype in ("float32", "uint8"):
            result = call(self.put(self.ints(self.rank, COUNT * self.world), dtype))
            parts = self.everyone(COUNT * self.world).reshape(self.world, self.world, COUNT)
            self.expect(result, parts[:, self.rank].reshape(-1), f"all_to_all {dtype}")

    def ppermute(self):
        if self.world < 2:
            raise checks.Skip("it needs two ranks")
        ring = [(rank, (rank + 1) % self.world) for rank in range(self.world)]
        call = self.mapped(lambda x: self.jax.lax.ppermute(x, "x", ring))
        for count in (1, COUNT, LARGE):
            result = call(self.put(self.ints(self.rank, count)))
            self.expect(result, self.ints((self.rank - 1) % self.world, count), f"ring of {count}")
        one_way = self.mapped(lambda x: self.jax.lax.ppermute(x, "x", [(0, 1)]))
        expected = self.ints(0, COUNT) if self.rank == 1 else self.numpy.zeros(COUNT)
        self.expect(one_way(self.put(self.ints(self.rank, COUNT))), expected, "from 0 to 1")

    def repeated(self):
        """Runs one program of several collectives many times."""
        lax = self.jax.lax

        def body(x):
            total = lax.psum(x, "x")
            part = lax.psum_scatter(lax.all_gather(x, "x", tiled=True), "x", tiled=True)
            return total + part
        call = self.mapped(body)
        results = [call(self.put(self.ints(self.rank, COUNT, seed))) for seed in range(30)]
        for seed, result in enumerate(results):
            expected = self.everyone(COUNT, seed).sum(0) + self.world * self.ints(
                self.rank, COUNT, seed)
            self.expect(result, expected, f"run {seed}")

    def replicated(self, values):
        sharding = self.jax.sharding.NamedSharding(self.mesh, self.jax.sharding.PartitionSpec())
        return self.jax.make_array_from_callback(values.shape, sharding, lambda part: values[part])

    def gradients(self):
        """Solves least squares by gradient steps; the compiler adds the all-reduce."""
        numpy, jax = self.numpy, self.jax
        everything = numpy.random.default_rng(4).normal(size=(64 * self.world, 9))
        inputs, targets = everything[:, :8], everything[:, 8]
        part = slice(64 * self.rank, 64 * (self.rank + 1))
        own_inputs, own_targets = (self.put(values[part], "float64")
                                   for values in (inputs, targets))

        def loss(weights, x, y):
            return ((x @ weights - y) ** 2).mean()
        step = jax.jit(lambda weights, x, y: weights - 0.1 * jax.grad(loss)(weights, x, y),
                       out_shardings=self.replicated(numpy.zeros(8)).sharding)
        weights, alone = self.replicated(numpy.zeros(8)), numpy.zeros(8)
        for _ in range(20):
            weights = step(weights, own_inputs, own_targets)
            alone = alone - 0.1 * 2 / len(targets) * inputs.T @ (inputs @ alone - targets)
        self.expect(weights, alone, "weights after 20 steps", rtol=1e-9)

    def close(self):
        self.jax.distributed.shutdown()


def main():
    checks.need("jax", "jaxlib", "numpy")
    gpus = checks.gpu_count()
    if gpus == 0:
        checks.skip("there is no GPU")
    ranks = checks.Checks()
    ranks.run("calls reach Oriel", ranks.check_library)
    suite = Suite(ranks, ranks.rank % gpus)
    ranks.run("initialize", suite.start)
    for name in ("psum", "other_reductions", "all_gather", "psum_scatter", "all_to_all", "ppermute",
                 "repeated", "gradients"):
        ranks.run(name, getattr(suite, name))
    ranks.finish(suite.close)


if __name__ == "__main__":
    main()
