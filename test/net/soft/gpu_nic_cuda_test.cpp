// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>

#include <catch2/catch.hpp>

#include "net/soft/gpu_nic_ranks.hpp"
#include "support/cuda/needs_gpu.hpp"

// Kernels that put, get, signal and add through software NICs of this process (3.9), and their
// times (3.21), which "[figures]" prints. With one GPU, both ranks are on it.
namespace oriel::net::test {
namespace {

const oriel::test::NeedsGpu needs_gpu;

int second_gpu() {
  return oriel::test::driver_gpus() > 1 ? 1 : 0;
}

const char* copier(bool by_process) {
  return by_process ? ", a process copies" : ", a thread copies";
}

void check_ops(int first, int second, bool direct, bool by_process, unsigned seed) {
  constexpr std::size_t kBytes = std::size_t{2} << 20;
  constexpr int kOps = 400;
  INFO("GPUs " << first << " and " << second << (direct ? ", direct copy" : ", memfd ring")
               << copier(by_process) << ", seed " << seed);
  GpuRanks ranks({{first, second}, kBytes, by_process}, direct);
  GpuStream stream_a(first), stream_b(second);
  std::mt19937_64 random(seed);
  Mirror mirror(random, kBytes);
  ranks.a.write(stream_a, mirror.a);
  ranks.b.write(stream_b, mirror.b);
  std::vector<RandomOp> ops = random_ops(random, kBytes, kOps, 300'000);
  const Pinned<RandomOp> given(kOps);
  std::copy(ops.begin(), ops.end(), given.get());
  for (RandomOp& op : ops) mirror.apply(op);
  const Pinned<std::uint32_t> outcome;
  *outcome = 99;
  must(cudaSetDevice(first), "cudaSetDevice");
  must(launch_ops({ranks.path(true), given.get(), kOps, outcome.get()}, stream_a.handle), "launch");
  must(cudaStreamSynchronize(stream_a.handle), "the kernel");
  REQUIRE(*outcome == 0);
  CHECK(ranks.a.read(stream_a) == mirror.a);
  CHECK(ranks.b.read(stream_b) == mirror.b);
  CHECK(same_old_values(ops, given.get()));
}

struct Timing {
  double median_us = 0;
  double least_us = 0;
  double mean_us = 0;
};

/// Returns the times of rounds from the cycles of each and the nanoseconds of all together.
Timing timing_of(const Pinned<std::uint64_t>& of_rounds, std::uint32_t rounds,
                 std::uint64_t nanoseconds) {
  std::vector<std::uint64_t> cycles(of_rounds.get(), of_rounds.get() + rounds);
  std::sort(cycles.begin(), cycles.end());
  double sum = 0;
  for (const std::uint64_t one : cycles) sum += static_cast<double>(one);
  const double us_per_cycle = static_cast<double>(nanoseconds) / std::max(sum, 1.0) / 1e3;
  return {static_cast<double>(cycles[(rounds - 1) / 2]) * us_per_cycle,
          static_cast<double>(cycles[0]) * us_per_cycle,
          static_cast<double>(nanoseconds) / rounds / 1e3};
}

struct PingResult {
  std::uint64_t wrong = 0;
  std::uint32_t outcome = 99;
  Timing round_trip;
};

PingResult ping(int first, int second, bool direct, bool by_process, std::size_t bytes,
                std::uint32_t rounds) {
  const std::size_t padded_bytes = (bytes + 511) / 512 * 512;
  GpuRanks ranks({{first, second}, 2 * padded_bytes, by_process}, direct);
  GpuStream stream_a(first), stream_b(second);
  const Pinned<std::uint64_t> cycles(rounds), wrong, nanoseconds(2);
  const Pinned<std::uint32_t> outcome(2);
  outcome[0] = outcome[1] = 99;
  PingJob job;
  job.from = 0;
  job.to = padded_bytes;
  job.bytes = bytes;
  job.rounds = rounds;
  job.wrong = wrong.get();
  for (const bool begins : {false, true}) {
    job.path = ranks.path(begins);
    job.begins = begins;
    job.cycles = begins ? cycles.get() : nullptr;
    job.nanoseconds = &nanoseconds[begins ? 1 : 0];
    job.outcome = &outcome[begins ? 1 : 0];
    must(cudaSetDevice(begins ? first : second), "cudaSetDevice");
    must(launch_ping(job, begins ? stream_a.handle : stream_b.handle), "launch");
  }
  must(cudaStreamSynchronize(stream_a.handle), "the kernel that begins");
  must(cudaStreamSynchronize(stream_b.handle), "the other kernel");
  return {*wrong, std::max(outcome[0], outcome[1]), timing_of(cycles, rounds, nanoseconds[1])};
}

}  // namespace

TEST_CASE("kernels put, get, add and fetch through software NICs, byte for byte", "[req:3.9]") {
  const bool direct = GENERATE(false, true);
  const bool by_process = GENERATE(false, true);
  check_ops(0, 0, direct, by_process, 21);
  if (second_gpu() == 1) check_ops(0, 1, direct, by_process, 22);
}

// CPU threads run the same body in queue_operations_test.cpp.
TEST_CASE("every operation does what it says, by each thread, lane, warp and CTA", "[req:3.1]") {
  const auto group = GENERATE(OperationsGroup::thread, OperationsGroup::lanes,
                              OperationsGroup::warp, OperationsGroup::cta);
  const bool direct = GENERATE(false, true);
  const std::uint32_t threads = kOperationsCtas * kOperationsThreads;
  const std::uint32_t groups = group == OperationsGroup::warp  ? threads / 32
                               : group == OperationsGroup::cta ? kOperationsCtas
                                                               : threads;
  // Uses a doorbell record too in one mode, as adapters do.
  const auto mode = direct ? DoorbellMode::strict : DoorbellMode::alone;
  GpuRanks ranks({{0, second_gpu()}, groups * kGroupBytes, false, mode}, direct);
  REQUIRE(post_receives(*ranks.b.queue, groups));
  const Pinned<std::uint32_t> wrong(groups);
  std::fill_n(wrong.get(), groups, 0xffffffffu);
  const GpuPath path = ranks.path(true);
  GpuStream stream(0);
  must(launch_operations({path, wrong.get()}, group, stream.handle), "launch");
  must(cudaStreamSynchronize(stream.handle), "the kernel");
  std::vector<std::uint32_t> immediates;
  Immediate immediate;
  while (take_immediate(*ranks.b.queue, immediate)) immediates.push_back(immediate.value);
  std::sort(immediates.begin(), immediates.end());
  REQUIRE(immediates.size() == groups);
  for (std::uint32_t i = 0; i < groups; ++i) {
    CAPTURE(i);
    CHECK(wrong[i] == 0);
    CHECK(immediates[i] == i);
  }
}

namespace {

/// Two ends of a transfer with immediates, each run by a kernel on its GPU.
struct ImmediatesFixture {
  ImmediatesFixture(int second, bool direct, bool by_process, std::uint32_t bytes,
                    std::uint32_t slots)
      : ranks({{0, second}, std::size_t{slots} * bytes, by_process}, direct), stream_b(second) {
    for (const bool sends : {true, false}) {
      const GpuPath path = ranks.path(sends);
      ImmediatesJob& job = sends ? sender : receiver;
      job.path = {path.queue,  ranks.b.queue->receives(), path.local, path.remote, bytes, slots,
                  path.control};
      job.sends = sends;
      job.wrong = &wrong[sends ? 0 : 1];
      job.outcome = &outcome[sends ? 0 : 1];
    }
  }
  /// Launches the receiver's kernel, and the sender's unless `sent` is 0.
  void launch(std::uint32_t sent, std::uint32_t received, OperationsGroup group) {
    sender.rounds = sent;
    receiver.rounds = received;
    std::fill_n(outcome.get(), 2, 0xffffffffu);
    must(cudaSetDevice(ranks.b.device), "cudaSetDevice");
    must(launch_immediates(receiver, group, stream_b.handle), "launching who waits");
    if (sent == 0) return;
    must(cudaSetDevice(0), "cudaSetDevice");
    must(launch_immediates(sender, group, stream_a.handle), "launching who puts");
  }
  void finish() {
    must(cudaStreamSynchronize(stream_a.handle), "the kernel that puts");
    must(cudaStreamSynchronize(stream_b.handle), "the kernel that waits");
  }
  GpuRanks ranks;
  Pinned<std::uint32_t> wrong{2}, outcome{2};
  ImmediatesJob sender, receiver;
  GpuStream stream_a{0};
  GpuStream stream_b;
};

}  // namespace

// A CPU thread runs the same body in gpu_nic_model_test.cpp.
TEST_CASE("a kernel waits for immediates, and sees the bytes of each", "[B4]") {
  const auto group = GENERATE(OperationsGroup::thread, OperationsGroup::warp, OperationsGroup::cta);
  const bool direct = GENERATE(false, true);
  const bool by_process = GENERATE(false, true);
  const std::uint32_t bytes = group == OperationsGroup::cta ? 65'536 : 512;
  constexpr std::uint32_t kRounds = 700;  // 256 receives: odd and even laps
  ImmediatesFixture fixture(second_gpu(), direct, by_process, bytes, 512);
  INFO((direct ? "direct copy" : "memfd ring") << copier(by_process));
  REQUIRE(post_receives(*fixture.ranks.b.queue, 256));
  fixture.launch(kRounds, kRounds, group);
  fixture.finish();
  CHECK(fixture.outcome[0] == 0);
  CHECK(fixture.outcome[1] == 0);
  CHECK(fixture.wrong[1] == 0);
  CHECK(fixture.receiver.path.receives.position->taken == kRounds);
  Immediate none;
  CHECK_FALSE(take_immediate(*fixture.ranks.b.queue, none));
}

TEST_CASE("a kernel's wait for an immediate ends by its deadline and by the abort word", "[B4]") {
  ImmediatesFixture fixture(second_gpu(), true, false, 512, 512);
  REQUIRE(post_receives(*fixture.ranks.b.queue, 256));
  fixture.receiver.path.control.timeout_ns = 20'000'000;
  fixture.launch(0, 1, OperationsGroup::warp);
  fixture.finish();
  CHECK(fixture.outcome[1] == static_cast<std::uint32_t>(dq::QueueOutcome::timed_out));
  const Pinned<std::uint32_t> abort;
  fixture.receiver.path.control.timeout_ns = 20'000'000'000;
  fixture.receiver.path.control.abort = abort.get();
  fixture.launch(3, 4, OperationsGroup::warp);  // one more than will arrive
  must(cudaStreamSynchronize(fixture.stream_a.handle), "the kernel that puts");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::atomic_ref<std::uint32_t>(*abort).store(1);
  fixture.finish();
  CHECK(fixture.outcome[1] == static_cast<std::uint32_t>(dq::QueueOutcome::aborted));
  CHECK(fixture.wrong[1] == 0);
  CHECK(fixture.receiver.path.receives.position->taken == 3);
  // The queue still works after the abort.
  fixture.receiver.path.control.abort = nullptr;
  fixture.launch(2, 2, OperationsGroup::warp);
  fixture.finish();
  CHECK(fixture.outcome[1] == 0);
  CHECK(fixture.wrong[1] == 0);
}

// CPU threads run the same body in queue_operations_test.cpp.
TEST_CASE("tickets that 4,096 GPU threads fetch at once by 1,024 slots are a permutation",
          "[A11]") {
  constexpr std::uint32_t kThreads = kTicketCtas * kTicketThreads;
  static_assert(kThreads == 4096);
  constexpr std::uint32_t kEach = 2;
  GpuRanks ranks({{0, second_gpu()}, 4096, false, DoorbellMode::alone, 1024}, true);
  const GpuPath path = ranks.path(true);
  const Pinned<std::uint64_t> tickets(kThreads * kEach);
  const Pinned<std::uint32_t> outcome(kThreads);
  std::fill_n(outcome.get(), kThreads, 0xffffffffu);
  TicketsJob job{path, 64, kEach};
  job.path.control.timeout_ns = 60'000'000'000;
  job.tickets = tickets.get();
  job.outcome = outcome.get();
  GpuStream stream(0);
  must(launch_tickets(job, stream.handle), "launch");
  must(cudaStreamSynchronize(stream.handle), "the kernel");
  CHECK(std::all_of(outcome.get(), outcome.get() + kThreads, [](auto each) { return each == 0; }));
  CHECK(is_permutation({tickets.get(), tickets.get() + kThreads * kEach}));
}

TEST_CASE("a kernel that sees the signal sees the bytes before it", "[req:3.9][A13]") {
  const bool direct = GENERATE(false, true);
  const bool by_process = GENERATE(false, true);
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{3001}, std::size_t{1} << 20}) {
    INFO(bytes << " bytes, " << (direct ? "direct copy" : "memfd ring") << copier(by_process));
    const PingResult result =
        ping(0, second_gpu(), direct, by_process, bytes, bytes > 4096 ? 60 : 400);
    CHECK(result.outcome == 0);
    CHECK(result.wrong == 0);
  }
}

namespace {

/// Application that makes calls which may stall the threads of libraries. While one of its threads
/// captures in global mode, the others must not allocate, so the threads take turns.
struct BusyApplication {
  static inline std::mutex turn;
  explicit BusyApplication(int on) : device(on), thread([this] { run(); }) {}
  ~BusyApplication() { end(); }
  BusyApplication(const BusyApplication&) = delete;
  BusyApplication& operator=(const BusyApplication&) = delete;
  void end() {
    stop = true;
    if (thread.joinable()) thread.join();
  }
  void run() {
    try {
      must(cudaSetDevice(device), "cudaSetDevice");
      std::unique_lock first(turn);
      GpuStream stream(device);
      std::uint32_t* word = nullptr;
      must(cudaMalloc(&word, 4), "cudaMalloc");
      must(cudaMemset(word, 0, 4), "cudaMemset");
      first.unlock();
      while (!stop) {
        const std::lock_guard lock(turn);
        void* block = nullptr;
        must(cudaMalloc(&block, std::size_t{4} << 20), "cudaMalloc");
        must(cudaFree(block), "cudaFree");
        must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t ready = nullptr;
        must(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeGlobal), "begin capture");
        must(launch_nothing(word, stream.handle), "launch in a capture");
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        must(cudaStreamEndCapture(stream.handle, &graph), "end capture");
        must(cudaGraphInstantiate(&ready, graph, 0), "instantiate");
        must(cudaGraphLaunch(ready, stream.handle), "cudaGraphLaunch");
        must(cudaGraphExecDestroy(ready), "destroy");
        must(cudaGraphDestroy(graph), "destroy");
        ++loops;
      }
      const std::lock_guard last(turn);
      must(cudaFree(word), "cudaFree");
    } catch (const std::exception& failure) {
      error = failure.what();
    }
  }
  const int device;
  std::atomic<bool> stop{false};
  std::atomic<int> loops{0};
  std::string error;  // valid once the thread has ended
  std::thread thread;
};

}  // namespace

// Only a process copies here. A thread's copies would deadlock. They wait for the driver's lock,
// which the application's cudaFree holds while it waits for the kernel, which waits for the copies.
TEST_CASE("10,000 puts complete beside an application that allocates, frees, waits, captures",
          "[req:3.9]") {
  const bool direct = GENERATE(false, true);
  const bool one_kernel = GENERATE(true, false);
  INFO((direct ? "direct copy, " : "memfd ring, ")
       << (one_kernel ? "one kernel of 10,000 puts" : "100 kernels of 100 puts"));
  const int second = second_gpu();
  GpuRanks ranks({{0, second}, std::size_t{1} << 20, true}, direct);
  GpuStream stream(0);
  const Pinned<std::uint32_t> outcome;
  PutsJob job;
  job.path = ranks.path(true);
  job.bytes = 4096;
  job.rounds = one_kernel ? 10'000 : 100;
  job.in_flight = 8;
  job.outcome = outcome.get();
  // Relaxes the capture mode, because this thread launches while another thread captures in global
  // mode.
  cudaStreamCaptureMode relaxed = cudaStreamCaptureModeRelaxed;
  must(cudaThreadExchangeStreamCaptureMode(&relaxed), "relaxing the capture mode");
  int loops = 0;
  {
    BusyApplication near(0);
    BusyApplication far(second);
    for (int i = 0; i < (one_kernel ? 1 : 100); ++i) {
      *outcome = 99;
      must(cudaSetDevice(0), "cudaSetDevice");
      must(launch_puts(job, stream.handle), "launch");
      must(cudaStreamSynchronize(stream.handle), "the kernel");
      REQUIRE(*outcome == 0);
    }
    loops = near.loops + far.loops;
    near.end();
    far.end();
    CHECK(near.error == "");
    CHECK(far.error == "");
  }
  must(cudaThreadExchangeStreamCaptureMode(&relaxed), "the capture mode of before");
  std::printf("10,000 puts of 4 KiB, %s, %s: the application went round %d times meanwhile\n",
              direct ? "direct" : "ring", one_kernel ? "one kernel" : "100 kernels", loops);
  if (!one_kernel) CHECK(loops > 0);
}

namespace {

void print_ping(int second, bool direct, bool by_process, std::uint32_t rounds) {
  const std::string how = std::string(direct ? "direct copy" : "memfd ring") + copier(by_process);
  const PingResult result = ping(0, second, direct, by_process, 8, rounds);
  REQUIRE(result.outcome == 0);
  REQUIRE(result.wrong == 0);
  std::printf(
      "put of 8 bytes to visible signal, GPU 0 to GPU %d, %s: median %.2f us, least %.2f, "
      "mean %.2f\n",
      second, how.c_str(), result.round_trip.median_us / 2, result.round_trip.least_us / 2,
      result.round_trip.mean_us / 2);
  for (const std::size_t bytes :
       {std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{16} << 20}) {
    const PingResult one = ping(0, second, direct, by_process, bytes, 50);
    REQUIRE(one.outcome == 0);
    const double median_us = one.round_trip.median_us / 2;
    std::printf("put of %zu bytes with signal, %s: median %.1f us, %.2f GB/s\n", bytes, how.c_str(),
                median_us, static_cast<double>(bytes) / median_us / 1e3);
  }
}

}  // namespace

TEST_CASE("prints times from a put of 8 bytes until its signal is visible, and the least possible",
          "[req:3.21][.][figures]") {
  const int second = second_gpu();
  constexpr std::uint32_t kRounds = 3000;
  for (const bool by_process : {true, false}) {
    for (const bool direct : {true, false}) print_ping(second, direct, by_process, kRounds);
  }
  // Floor: no NIC and no queue. A thread that sees the word makes the copy engine copy and write.
  const ShareableGpuMemory from(second, 4096, {0}), to(0, 4096);
  const Pinned<std::uint64_t> asked, cycles(kRounds), nanoseconds;
  GpuStream kernel(0), engine(0);
  must(load_gpu_nic_kernels(), "loading kernels");
  must(cudaMemset(to.data(), 0, 4096), "cudaMemset");
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (const bool copies : {true, false}) {
    *asked = 0;
    must(cudaMemset(to.data(), 0, 8), "cudaMemset");
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    must(launch_floor({asked.get(), reinterpret_cast<const std::uint64_t*>(to.address), kRounds,
                       cycles.get(), nanoseconds.get()},
                      kernel.handle),
         "launch");
    const std::atomic_ref<std::uint64_t> word(*asked);
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      const TimePoint due = SteadyClock::instance().now() + std::chrono::seconds(10);
      while (word.load(std::memory_order_acquire) != round) {
        REQUIRE(SteadyClock::instance().now() < due);
      }
      if (copies) {
        must_driver(cuda().memcpy_d_to_d_async(to.address + 64, from.address, 8, engine.handle),
                    "copy");
      }
      CUstreamBatchMemOpParams write{};
      write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
      write.writeValue.address = to.address;
      write.writeValue.value64 = round;
      must_driver(cuda().stream_batch_mem_op(engine.handle, 1, &write, 0), "write");
    }
    must(cudaStreamSynchronize(kernel.handle), "the kernel");
    const Timing timing = timing_of(cycles, kRounds, *nanoseconds);
    std::printf("floor: pinned word seen by a thread, %sstream write: median %.2f us, least %.2f\n",
                copies ? "copy of 8 bytes by the engine, " : "", timing.median_us, timing.least_us);
  }
}

}  // namespace oriel::net::test
