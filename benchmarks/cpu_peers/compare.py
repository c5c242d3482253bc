#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Compares Oriel's collectives and ring of sends and receives with MPIs and memcpys on CPU ranks.

All run together: floats, sums, out of place. Sizes are those of the larger buffer. Each contestant
is a set of ranks that measures one round per request and sleeps otherwise. The rounds of all
contestants alternate at each size, so that a drift of the machine affects all of them equally.
The MPIs, Open MPI and MPICH, need: apt install openmpi-bin libopenmpi-dev mpich libmpich-dev
memcpys.cpp says what the plain memcpys copy.

Exit status: 0; 1 if a result was wrong, a contestant failed or there is no build. The exit status
is 2 for wrong flags, and 77 if nothing could be measured. With --require, the exit status is 1 too
if Oriel misses requirement 5.22: its speed-up over the faster MPI, or 0.95 of memcpys' speed.
"""
import os
import pathlib
import platform
import selectors
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import benchmark  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
ROUND_SECONDS = 0.03  # about how long a round of the slowest contestant lasts
FEWEST_CALLS, MOST_CALLS = 4, 2000
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce",
               "gather", "scatter", "sendrecv")
ANSWER_SECONDS = 120
ROTATION_BYTES = 128 << 20
MOST_SETS = 8


def buffer_sets(size, calls):
    """Returns the number of buffer sets, by oriel-perf's rule."""
    return min(calls, MOST_SETS, ROTATION_BYTES // (2 * size) + 1)


class Failure(Exception):
    pass


class Contestant:
    """A set of ranks. Subclasses start the ranks and forward requests to them."""

    def __init__(self, name):
        self.name = name
        self.process = None
        self.answers = None

    def measure(self, size, calls, seed):
        """Returns microseconds per call of the slowest rank, and the number of wrong elements."""
        self.request(size, calls, seed)
        line = self.answers.readline() if self.wait_for_answer() else ""
        words = line.split()
        if len(words) != 2:
            state = self.process.poll()
            reason = "did not answer" if state is None else f"ended with status {state}"
            raise Failure(f"{self.name} {reason} at {size} bytes")
        return float(words[0]), int(words[1])

    def wait_for_answer(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self.answers, selectors.EVENT_READ)
            for _ in range(ANSWER_SECONDS):
                if selector.select(1):
                    return True
                if self.process.poll() is not None:
                    return False
        return False

    def stop(self):
        if self.process is None:
            return
        self.end_requests()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.answers.close()


class Oriel(Contestant):
    def __init__(self, name, options, collective, registration):
        super().__init__(name)
        command = [str(options.perf), collective, "--serve", "--backend", "host", "--ranks",
                   str(options.ranks), "-e", str(max(options.sizes)), "--register", registration,
                   "--out-of-place"]
        if options.lib:
            command += ["--lib", options.lib]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.answers = self.process.stdout

    def request(self, size, calls, seed):
        try:
            self.process.stdin.write(f"{size} {calls}\n")
            self.process.stdin.flush()
        except BrokenPipeError as gone:
            raise Failure(f"{self.name} has ended") from gone

    def end_requests(self):
        self.process.stdin.close()


class Program(Contestant):
    """Ranks of a program beside this script, which reads requests from a FIFO for each rank."""

    def __init__(self, name, options, collective, compiler, launcher, directory):
        super().__init__(name)
        self.directory = pathlib.Path(directory) / f"{name}-{collective}"
        self.directory.mkdir()
        program = self.directory / name
        subprocess.run([*compiler, "-O2", "-o", program], check=True)
        paths = [self.directory / f"request.{rank}" for rank in range(options.ranks)]
        for path in paths + [self.directory / "answer"]:
            os.mkfifo(path)
        self.process = subprocess.Popen(launcher + [program, collective, self.directory,
                                                    str(max(options.sizes)), str(options.ranks)],
                                        stdin=subprocess.DEVNULL, start_new_session=True)
        # O_RDWR: opening does not wait for the ranks, and no end of file is read before rank 0 has
        # opened its side.
        self.requests = [os.open(path, os.O_RDWR) for path in paths]
        self.answers = os.fdopen(os.open(self.directory / "answer", os.O_RDWR), "r")

    def request(self, size, calls, seed):
        line = f"{size} {calls} {buffer_sets(size, calls)} {seed}\n".encode()
        for fd in self.requests:
            os.write(fd, line)

    def end_requests(self):
        for fd in self.requests:
            os.close(fd)


def start_all(options, collective, directory):
    wanted = options.only.split(",") if options.only else None
    found = []

    def add(name, make, reason):
        if wanted is not None and name not in wanted:
            return
        if reason:
            print(f"# {name}: left out, {reason}")
            return
        found.append(make())

    add("oriel_windows", lambda: Oriel("oriel_windows", options, collective, "both"), "")
    add("oriel_malloc", lambda: Oriel("oriel_malloc", options, collective, "none"), "")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    count = str(options.ranks)
    mpi = [FOLDER / "mpi_collectives.c", "-std=c99", "-D_POSIX_C_SOURCE=200809L"]
    copies = ["c++", FOLDER / "memcpys.cpp", "-std=c++20", f"-I{benchmark.ROOT / 'tools'}"]
    for name, compiler, launcher in (
            ("open_mpi", ["mpicc.openmpi", *mpi],
             ["mpirun.openmpi", *as_root, "--oversubscribe", "-np", count]),
            ("mpich", ["mpicc.mpich", *mpi], ["mpiexec.mpich", "-n", count]),
            ("memcpys", copies, [])):
        missing = [tool for tool in (compiler[0], *launcher[:1]) if shutil.which(tool) is None]
        add(name,
            lambda n=name, c=compiler, l=launcher: Program(n, options, collective, c, l, directory),
            f"{missing[0]} is not installed" if missing else "")
    return found


def choose_calls(contestants, size):
    """Warms up; returns the calls per round of every contestant, set by the slowest."""
    slowest = 0.0
    for one in contestants:
        one.measure(size, FEWEST_CALLS, 0)
        slowest = max(slowest, one.measure(size, FEWEST_CALLS, 0)[0])
    return max(FEWEST_CALLS, min(MOST_CALLS, int(ROUND_SECONDS * 1e6 / max(slowest, 0.01))))


def measure_size(contestants, size, rounds):
    calls = choose_calls(contestants, size)
    times = {one.name: [] for one in contestants}
    wrong = {one.name: 0 for one in contestants}
    for number in range(rounds):
        turn = number % len(contestants)
        for one in contestants[turn:] + contestants[:turn]:
            microseconds, bad = one.measure(size, calls, number + 1)
            times[one.name].append(microseconds)
            wrong[one.name] += bad
    medians = {name: statistics.median(values) for name, values in times.items()}
    row = {"bytes": size, "calls_per_round": calls, "rounds_us": times, "median_us": medians,
           "wrong": wrong}
    peers = [medians[name] for name in ("open_mpi", "mpich") if name in medians]
    row["over_mpi"] = speedups(medians, peers)
    row["over_memcpys"] = speedups(medians, [medians["memcpys"]] if "memcpys" in medians else [])
    return row


def speedups(medians, peers):
    """Returns each Oriel's speed-up over the fastest of the peers' times, if there are any."""
    return {name: min(peers) / medians[name]
            for name in medians if peers and name.startswith("oriel")}


def print_row(row, names):
    line = f"{row['bytes']:>10}" + "".join(f"{row['median_us'][name]:>15.2f}" for name in names)
    for one in (row["over_mpi"], row["over_memcpys"]):
        line += "".join(f"{one[name]:>9.2f}" for name in names if name in one)
    print(line + f"{sum(row['wrong'].values()):>8}", flush=True)


def falls_short(row):
    size = row["bytes"]

    def is_below(name, aim):
        return row["over_mpi"].get(name, 0) < aim and row["over_memcpys"].get(name, 0) < 0.95

    return (is_below("oriel_windows", 1 if size <= 64 else 1.3 if size <= 4 << 10 else 1.5)
            or (size >= 1 << 10 and is_below("oriel_malloc", 1)))


def first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return next((line.strip() for line in done.stdout.splitlines() if line.strip()), "")
    except (OSError, subprocess.TimeoutExpired):
        return ""


def describe_machine():
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as info:
            model = next((line.split(":", 1)[1].strip() for line in info
                          if line.startswith("model name")), "")
    except OSError:
        pass
    return {"processor": model, "cores": os.cpu_count(), "kernel": platform.release(),
            "open_mpi": first_line(["mpirun.openmpi", "--version"]),
            "mpich": first_line(["mpichversion.mpich"]) or first_line(["mpichversion"])}


def parse_options():
    parser = benchmark.make_parser(__doc__)
    benchmark.add_build_flag(parser)
    parser.add_argument("--perf", type=pathlib.Path, help="the oriel-perf to use (the build's)")
    parser.add_argument("--lib", help="the libnccl.so.2 to use (the one beside oriel-perf)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--collectives", default="all_reduce",
                        help=f"by commas, or all: {', '.join(COLLECTIVES)} (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", help="bytes, by commas, such as 8,4K,64M (every power "
                                        "of two from 8 to 64M)")
    parser.add_argument("--only", help="contestants, by commas: oriel_windows, oriel_malloc, "
                                       "open_mpi, mpich, memcpys")
    parser.add_argument("--out", help="write all rounds to this JSON file")
    parser.add_argument("--require", action="store_true", help="fail if Oriel falls short")
    options = parser.parse_args()
    if options.only is None or "oriel" in options.only:
        options.perf = benchmark.find_program(options, "oriel-perf", options.perf)
    options.collectives = (COLLECTIVES if options.collectives == "all"
                           else options.collectives.split(","))
    options.sizes = ([benchmark.parse_size(one) for one in options.sizes.split(",")]
                     if options.sizes else [1 << power for power in range(3, 27)])
    return options


def results_of(collective, rows, options):
    return [benchmark.result(collective,
                             {"contestant": name, "bytes": row["bytes"], "type": "f32", "op": "sum",
                              "ranks": options.ranks},
                             "us", samples=samples, median=row["median_us"][name],
                             calls_per_round=row["calls_per_round"], wrong=row["wrong"][name])
            for row in rows for name, samples in row["rounds_us"].items()]


def compare(options, collective, directory):
    """Returns the rows of one collective; none if there is nothing to measure."""
    contestants = []
    try:
        contestants = start_all(options, collective, directory)
        if not contestants:
            return []
        names = [one.name for one in contestants]
        print(f"# {collective}, float, {options.ranks} ranks, median of {options.rounds} rounds, "
              "microseconds; then the speed-up of each Oriel over the faster MPI and over memcpys")
        print(f"{'# bytes':>10}" + "".join(f"{name:>15}" for name in names), flush=True)
        rows = []
        for size in options.sizes:
            rows.append(measure_size(contestants, size, options.rounds))
            print_row(rows[-1], names)
        return rows
    finally:
        for one in contestants:
            one.stop()


def compare_all(options, directory):
    results = []
    wrong = 0
    short = []
    for collective in options.collectives:
        rows = compare(options, collective, directory)
        results += results_of(collective, rows, options)
        wrong += sum(sum(row["wrong"].values()) for row in rows)
        short += [f"{collective} of {row['bytes']}" for row in rows if falls_short(row)]
    if not results:
        print("skipped: there is nothing to measure")
        return 77
    if options.out:
        benchmark.write_results(options.out, results, machine=describe_machine())
    if wrong:
        print(f"# {wrong} wrong elements")
    if short:
        print(f"# short of the aim at: {', '.join(short)} bytes")
    return 1 if wrong or (short and options.require) else 0


def main():
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="oriel-cpu-peers-") as directory:
        try:
            return compare_all(options, directory)
        except (Failure, subprocess.CalledProcessError) as problem:
            print(f"compare.py: {problem}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
