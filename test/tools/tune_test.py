#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:1.29]
"""Tests oriel-tune on a fake oriel-perf whose best plans are known. The first argument is the path
of oriel-tune."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TUNE = pathlib.Path(sys.argv.pop(1)).resolve()
FAKE = pathlib.Path(__file__).resolve().parent / "fake_perf.py"
sys.path.insert(0, str(FAKE.parent))
import fake_perf  # noqa: E402


def load_tune():
    loader = importlib.machinery.SourceFileLoader("oriel_tune", str(TUNE))
    spec = importlib.util.spec_from_loader("oriel_tune", loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["oriel_tune"] = module  # dataclasses look it up there
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


tune = load_tune()


class Tune(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="oriel-tune-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "table"
        self.log = self.folder / "log"
        self.perf = self.folder / "perf"  # starts Python directly, without /usr/bin/env
        self.perf.write_text(FAKE.read_text().replace("/usr/bin/env python3", sys.executable, 1))
        self.perf.chmod(0o700)

    def run_tune(self, *arguments, **environment):
        return subprocess.run(
            [sys.executable, str(TUNE), "--perf", str(self.perf), "--lib", "fake.so", *arguments],
            env={**os.environ, "FAKE_LOG": str(self.log), **environment},
            check=False, capture_output=True, text=True)

    def runs(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def plan_at(self, size, backend="cuda", ranks=4):
        return fake_perf.find(fake_perf.read_table(self.out), backend, ranks, size)

    def test_finds_the_best_plans_with_few_measurements_and_checks_the_result(self):
        done = self.run_tune("-o", str(self.out), FAKE_BACKEND="cuda", FAKE_RANKS="4")
        self.assertEqual(done.returncode, 0, done.stderr)
        for power in range(3, 31):
            size = 1 << power
            best = min(fake_perf.model_us(size, (p.algorithm, p.ctas, p.threads, p.chunk, p.depth,
                                                 p.lead))
                       for p in tune.plans_for("cuda", 4, size))
            chosen = fake_perf.model_us(size, self.plan_at(size))
            self.assertLessEqual(chosen, best * 1.021, f"{size} B")
        self.assertEqual(self.plan_at(8)[0:2], ("one_shot", 1))
        self.assertEqual(self.plan_at(65536)[0], "two_shot")
        self.assertEqual((self.plan_at(1 << 40)[0], self.plan_at(1 << 40)[3]), ("stream", 32768))
        runs = self.runs()
        self.assertLess(len(runs), 30)
        self.assertLess(sum(len(run["sizes"]) for run in runs), 2500)
        self.assertEqual(runs[-1]["sizes"], [1 << power for power in range(3, 31)])
        self.assertTrue(runs[-1]["checked"] and runs[-1]["table"])
        self.assertEqual(runs[-1]["against"], "fake.so")

    def test_noise_makes_no_lines(self):
        plans = [tune.Plan("stream", 1, 1, chunk, 2, 1) for chunk in (1024, 2048)]
        times = {size: {plans[0]: 100 + size % 2, plans[1]: 101 - size % 2} for size in range(8)}
        self.assertEqual(set(tune.choose(times).values()), {plans[0]})
        self.assertEqual(len(tune.make_lines("host", 2, tune.choose(times))), 1)
        times[5][plans[0]] = 120
        self.assertEqual(len(tune.make_lines("host", 2, tune.choose(times))), 2)

    def test_deals_each_plan_out_once(self):
        candidates = {1 << power: tune.plans_for("cuda", 4, 1 << power) for power in range(3, 31)}
        seen = []
        for wave in tune.make_waves(candidates):
            for at, (size, plan) in wave.items():
                self.assertGreater(at, size * 7 // 8 - 1)
                self.assertLessEqual(at, size)
                seen.append((size, plan))
        self.assertEqual(len(seen), len(set(seen)))
        self.assertEqual(len(seen), sum(map(len, candidates.values())))

    def test_writes_to_standard_output(self):
        done = self.run_tune("-e", "64", "--rounds", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.out.write_text(done.stdout)
        self.assertEqual(self.plan_at(64, "host", 2)[0], "eager")

    def test_keeps_other_backends_and_ranks(self):
        for ranks in ("2", "3", "2"):
            done = self.run_tune("-o", str(self.out), "-e", "64", "--ranks", ranks)
            self.assertEqual(done.returncode, 0, done.stderr)
        with self.out.open("a") as file:
            file.write("cuda 2 max stream 8 512 16384 2 1\n")
        self.assertEqual(self.run_tune("-o", str(self.out), "-e", "64").returncode, 0)
        table = fake_perf.read_table(self.out)
        self.assertEqual({line[:2] for line in table}, {("host", 2), ("host", 3), ("cuda", 2)})
        self.assertEqual(len(table), len(set(table)))
        text = self.out.read_text()
        self.assertEqual(text.count(tune.COLUMNS), 1)
        self.assertEqual(text.count("# host, 2 ranks:"), 1)
        self.assertEqual(text.count("# host, 3 ranks:"), 1)

    def test_writes_no_table_after_a_failure(self):
        for fault, word in (("wrong", "1 wrong"), ("error", "fell over"), ("status", "status 5")):
            done = self.run_tune("-o", str(self.out), "-e", "64", FAKE_FAULT=fault)
            self.assertEqual(done.returncode, 1)
            self.assertIn(word, done.stderr)
            self.assertFalse(self.out.exists())
        done = self.run_tune("-o", str(self.out), "-b", "64K", "-e", "1K")
        self.assertEqual(done.returncode, 2)
        self.assertIn("below the first", done.stderr)
        self.assertEqual(self.run_tune("-e", "7X").returncode, 2)


if __name__ == "__main__":
    unittest.main()
