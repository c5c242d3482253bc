// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "gpu/fill_gpu.hpp"
#include "gpu/gpu_ranks.hpp"

/// Tests GPU ranks that die, stop or abort while kernels of other ranks wait for them. Ranks that
/// are killed or stopped are processes.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

const int kGpus = gpus();  // skips the program without a GPU
const int kRanks = std::clamp(kGpus, 2, 4);
const bool kShared = kRanks > kGpus;  // ranks take turns on a GPU, which takes longer
const int kVictim = kRanks - 1;
constexpr std::size_t kMost = 2'000'000;

std::uint64_t now_ms() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now().time_since_epoch())
          .count());
}

// Indices of words of SharedState.
constexpr std::size_t kCalls = 0;   // by rank: completed calls
constexpr std::size_t kEnded = 64;  // by rank: time in ms of its kernels' end and its error

ncclResult_t async_error(ncclComm_t comm) {
  ncclResult_t state = ncclInternalError;
  require(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
  return state;
}

/// Waits up to `timeout` for an asynchronous error and returns the state.
ncclResult_t error_within(ncclComm_t comm, std::chrono::milliseconds timeout) {
  const auto end = steady_clock::now() + timeout;
  ncclResult_t state = async_error(comm);
  while (state == ncclSuccess && steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
    state = async_error(comm);
  }
  return state;
}

void require_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    require(text.find(word) != std::string::npos, fmt::format("no \"{}\" in \"{}\"", word, text));
  }
}

enum class Kind {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  ring,
};
constexpr int kKinds = 9;
constexpr int kRoot = 0;

const char* name_of(Kind kind) {
  constexpr const char* kNames[kKinds] = {"all-reduce", "broadcast",      "reduce",
                                          "all-gather", "reduce-scatter", "all-to-all",
                                          "gather",     "scatter",        "ring of messages"};
  return kNames[static_cast<int>(kind)];
}

/// Enqueues a call with blocks of `count` elements. `in` and `out` have room for a block of each
/// rank.
ncclResult_t enqueue(Kind kind, const float* in, float* out, std::size_t count, int rank,
                     ncclComm_t comm, cudaStream_t stream) {
  switch (kind) {
    case Kind::all_reduce:
      return ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, stream);
    case Kind::broadcast:
      return ncclBroadcast(in, out, count, ncclFloat, kRoot, comm, stream);
    case Kind::reduce:
      return ncclReduce(in, out, count, ncclFloat, ncclSum, kRoot, comm, stream);
    case Kind::all_gather:
      return ncclAllGather(in, out, count, ncclFloat, comm, stream);
    case Kind::reduce_scatter:
      return ncclReduceScatter(in, out, count, ncclFloat, ncclSum, comm, stream);
    case Kind::all_to_all:
      return ncclAlltoAll(in, out, count, ncclFloat, comm, stream);
    case Kind::gather:
      return ncclGather(in, out, count, ncclFloat, kRoot, comm, stream);
    case Kind::scatter:
      return ncclScatter(in, out, count, ncclFloat, kRoot, comm, stream);
    case Kind::ring:
      break;
  }
  const int right = (rank + 1) % kRanks, left = (rank + kRanks - 1) % kRanks;
  require(ncclGroupStart(), "ncclGroupStart");
  ncclResult_t result = ncclSend(in, count, ncclFloat, right, comm, stream);
  if (result == ncclSuccess) result = ncclRecv(out, count, ncclFloat, left, comm, stream);
  const ncclResult_t ended = ncclGroupEnd();
  return result == ncclSuccess ? ended : result;
}

/// Returns the elements that a call with blocks of `count` elements stores on `rank`. Each element
/// of a rank's input is `first` plus its rank.
std::vector<float> outputs_of(Kind kind, std::size_t count, int rank, float first) {
  std::vector<float> blocks;
  switch (kind) {
    case Kind::reduce:
      if (rank != kRoot) return {};
      [[fallthrough]];
    case Kind::all_reduce:
    case Kind::reduce_scatter: {
      const auto n = static_cast<float>(kRanks);
      blocks = {n * first + n * (n - 1) / 2};
      break;
    }
    case Kind::broadcast:
    case Kind::scatter:
      blocks = {first + static_cast<float>(kRoot)};
      break;
    case Kind::gather:
      if (rank != kRoot) return {};
      [[fallthrough]];
    case Kind::all_gather:
    case Kind::all_to_all:
      for (int from = 0; from < kRanks; ++from) blocks.push_back(first + static_cast<float>(from));
      break;
    case Kind::ring:
      blocks = {first + static_cast<float>((rank + kRanks - 1) % kRanks)};
      break;
  }
  std::vector<float> elements;
  for (const float block : blocks) elements.insert(elements.end(), count, block);
  return elements;
}

struct Load {
  const char* algorithm;
  std::size_t count;
  Kind kind = Kind::all_reduce;
};

struct Rank {
  explicit Rank(TestRanks& test_ranks)
      : index(test_ranks.first()),
        gpu(index),
        data(reinterpret_cast<float*>(gpu.allocate(kMost * 4, false))) {
    require_cuda(cudaMemsetAsync(data, 0, kMost * 4, gpu.stream()), "clearing");
    gpu.wait(gpu.stream(), nullptr);
  }
  ncclResult_t enqueue(std::size_t count, ncclComm_t comm) const {
    return ncclAllReduce(data, data, count, ncclFloat, ncclSum, comm, gpu.stream());
  }
  /// Enqueues a call of `load`. An all-reduce works in place from the start of `data`. Other kinds
  /// read the first half of `data` and write the second.
  ncclResult_t enqueue(const Load& load, ncclComm_t comm) const {
    if (load.kind == Kind::all_reduce) return enqueue(load.count, comm);
    return test::enqueue(load.kind, data, data + kMost / 2, load.count, index, comm, gpu.stream());
  }
  int index;
  RankGpu gpu;
  float* data;
};

/// Makes calls, four in flight at once, until the communicator has failed and its kernels have
/// ended.
ncclResult_t call_until_failure(TestRanks& test_ranks, Rank& rank, ncclComm_t comm,
                                const Load& load) {
  const auto index = static_cast<std::size_t>(test_ranks.first());
  ncclResult_t state = ncclSuccess;
  while (state == ncclSuccess) {
    for (int i = 0; i < 4 && state == ncclSuccess; ++i) state = rank.enqueue(load, comm);
    require(rank.gpu.done(rank.gpu.stream(), 10s), "the kernels have not ended");
    if (state == ncclSuccess) state = async_error(comm);
    if (state == ncclSuccess) test_ranks.word(kCalls + index) += 4;
  }
  test_ranks.word(kEnded + index) = now_ms();
  return state;
}

/// Checks that a failed communicator keeps its error, refuses further use, and can be destroyed.
void check_refusals(Rank& rank, ncclComm_t comm, ncclResult_t error,
                    const std::vector<std::string>& words) {
  require(async_error(comm) == error, "the asynchronous error has changed");
  require_words(ncclGetLastError(comm), words);
  expect_error(rank.enqueue(1, comm), error, "a later call", words);
  Buffer buffer(4096);
  ncclWindow_t window = nullptr;
  require(ncclCommWindowRegister(comm, buffer.at(), 4096, &window, 0) == error,
          "a registration after the failure");
  require(ncclCommFinalize(comm) == error, "ncclCommFinalize after the failure");
  require(ncclCommDestroy(comm), "ncclCommDestroy after the failure");
}

/// Checks that the GPU still serves a new communicator of `size` ranks in this process.
void check_new_communicator(const ncclUniqueId& id, Rank& rank, int index, int size) {
  ncclComm_t comm = nullptr;
  require(ncclCommInitRank(&comm, size, id, index), "a new communicator");
  const std::vector<float> ones(1000, 1.0f);
  rank.gpu.copy_in(rank.data, ones.data(), 4000);
  require(rank.enqueue(1000, comm), "ncclAllReduce of a new communicator");
  rank.gpu.wait(rank.gpu.stream(), comm);
  std::vector<float> sums(1000);
  rank.gpu.copy_out(sums.data(), rank.data, 4000);
  require(
      std::all_of(sums.begin(), sums.end(), [&](float x) { return x == static_cast<float>(size); }),
      "the sum of a new communicator");
  require(ncclCommDestroy(comm), "ncclCommDestroy of a new communicator");
}

TEST_CASE("survivors of a killed rank get an error that names it, and go on",
          "[req:1.12][req:1.41][req:5.21]") {
  const std::uint64_t limit_ms = kShared ? 8000 : 2000;
  constexpr std::size_t kMostBlock = kMost / 8;  // four blocks of input and of output
  for (const Load load :
       {Load{"one_shot", 3}, Load{"two_shot", 100'000}, Load{"stream", kMost},
        Load{"auto", 40'000, Kind::all_gather}, Load{"stream", kMostBlock, Kind::all_gather},
        Load{"auto", kMostBlock, Kind::all_to_all}, Load{"stream", kMostBlock, Kind::broadcast},
        Load{"auto", 3, Kind::ring}, Load{"auto", kMostBlock, Kind::ring}}) {
    INFO(name_of(load.kind) << ", " << load.algorithm << ", " << load.count << " elements, "
                            << kRanks << " ranks on " << kGpus << " GPU(s)");
    Environment environment(Variables{{"ORIEL_ALGORITHM", load.algorithm}});
    RankFixture fixture(LaunchMode::processes, kRanks, [&](TestRanks& test_ranks) {
      Rank rank(test_ranks);
      ncclComm_t comm = init_rank(test_ranks, rank.gpu);
      const ncclResult_t error = call_until_failure(test_ranks, rank, comm, load);
      check_refusals(rank, comm, error, {fmt::format("rank {}", kVictim)});
      // The victim is the last rank, so the survivors keep their ranks.
      check_new_communicator(test_ranks.next_id(), rank, test_ranks.first(), kRanks - 1);
    });
    REQUIRE(fixture.wait_for_word(kCalls + static_cast<std::size_t>(kVictim), 20, 30s));
    std::this_thread::sleep_for(7ms);
    const std::uint64_t killed = now_ms();
    fixture.kill(kVictim, SIGKILL);
    const auto results = fixture.collect(35s);
    std::string times;
    for (int rank = 0; rank < kRanks - 1; ++rank) {
      CHECK(results[static_cast<std::size_t>(rank)] == "ok");
      const std::uint64_t ended = fixture.shared().words[kEnded + static_cast<std::size_t>(rank)];
      CHECK(ended - killed < limit_ms);
      times += fmt::format(" {}", ended - killed);
    }
    std::printf("%s, %s, %zu elements: ms from SIGKILL to the survivors' errors:%s\n",
                name_of(load.kind), load.algorithm, load.count, times.c_str());
    std::fflush(stdout);
  }
}

TEST_CASE("ORIEL_COLLECTIVE_TIMEOUT ends the kernels that wait for a stopped rank", "[req:1.12]") {
  for (const Load load : {Load{"one_shot", 3}, Load{"two_shot", 100'000}, Load{"stream", kMost}}) {
    INFO(load.algorithm);
    Environment environment(
        Variables{{"ORIEL_ALGORITHM", load.algorithm}, {"ORIEL_COLLECTIVE_TIMEOUT", "700ms"}});
    RankFixture fixture(LaunchMode::processes, kRanks, [&](TestRanks& test_ranks) {
      Rank rank(test_ranks);
      ncclComm_t comm = init_rank(test_ranks, rank.gpu);
      const ncclResult_t error = call_until_failure(test_ranks, rank, comm, load);
      check_refusals(rank, comm, error, {fmt::format("rank {}", kVictim)});
      // The stopped rank has been continued.
      check_new_communicator(test_ranks.next_id(), rank, test_ranks.first(), kRanks);
    });
    REQUIRE(fixture.wait_for_word(kCalls + static_cast<std::size_t>(kVictim), 20, 30s));
    const std::uint64_t stopped = now_ms();
    fixture.kill(kVictim, SIGSTOP);
    bool all_ended = true;
    std::string times;
    for (std::size_t rank = 0; rank + 1 < static_cast<std::size_t>(kRanks); ++rank) {
      all_ended = fixture.wait_for_word(kEnded + rank, 1, 12s) && all_ended;
      times += fmt::format(" {}", fixture.shared().words[kEnded + rank] - stopped);
    }
    fixture.kill(kVictim, SIGCONT);  // the rank wakes up after the communicator has failed
    CHECK(all_ended);
    std::printf("%s, %zu elements: ms from SIGSTOP to the errors:%s\n", load.algorithm, load.count,
                times.c_str());
    std::fflush(stdout);
    check_all_ok(fixture.collect(35s));
  }
}

TEST_CASE("without the timeout a stopped rank may come back", "[req:1.12]") {
  RankFixture fixture(LaunchMode::processes, kRanks, [](TestRanks& test_ranks) {
    Rank rank(test_ranks);
    ncclComm_t comm = init_rank(test_ranks, rank.gpu);
    const int calls = kShared ? 40 : 400;
    for (int i = 0; i < calls; ++i) {
      const std::vector<float> values(5000, static_cast<float>(i + test_ranks.first()));
      rank.gpu.copy_in(rank.data, values.data(), 20'000);
      require(rank.enqueue(5000, comm), "ncclAllReduce");
      rank.gpu.wait(rank.gpu.stream(), comm);
      float sums[2];
      rank.gpu.copy_out(&sums[0], rank.data, 4);
      rank.gpu.copy_out(&sums[1], rank.data + 4999, 4);
      const auto expected = static_cast<float>(kRanks * i + kRanks * (kRanks - 1) / 2);
      require(sums[0] == expected && sums[1] == expected, "the sum");
      test_ranks.word(kCalls + static_cast<std::size_t>(test_ranks.first())) += 1;
    }
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
  REQUIRE(fixture.wait_for_word(kCalls + static_cast<std::size_t>(kVictim), 10, 30s));
  fixture.kill(kVictim, SIGSTOP);
  std::this_thread::sleep_for(1800ms);
  fixture.kill(kVictim, SIGCONT);
  check_all_ok(fixture.collect(30s));
}

/// Makes three calls that end; rank 0 then makes one that rank 1 never makes, and aborts.
void abort_fourth_call(TestRanks& test_ranks) {
  Rank rank(test_ranks);
  ncclComm_t comm = init_rank(test_ranks, rank.gpu);
  for (int i = 0; i < 3; ++i) require(rank.enqueue(1000, comm), "ncclAllReduce");
  rank.gpu.wait(rank.gpu.stream(), comm);
  test_ranks.barrier();
  if (test_ranks.first() == 0) {
    require(rank.enqueue(1000, comm), "ncclAllReduce");
    std::this_thread::sleep_for(300ms);
    require(ncclCommAbort(comm), "ncclCommAbort");
    require(rank.gpu.done(rank.gpu.stream(), 10s), "the abort has not ended the kernel");
  } else {
    require(error_within(comm, 15s) != ncclSuccess, "no error of the peer's abort");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  }
}

TEST_CASE("files of GPU ranks, one of which aborts a call, say which calls have ended",
          "[req:5.7]") {
  const std::filesystem::path folder = fmt::format("/tmp/oriel-gpu-flight-{}", getpid());
  std::filesystem::create_directory(folder);
  const Environment environment(Variables{{"ORIEL_DUMP_DIR", folder.string()}});
  check_all_ok(run_ranks(natural_cast(2), 2, abort_fourth_call, 40s));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto count = [&](const char* word) {
      std::size_t found = 0;
      for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
        ++found;
      return found;
    };
    INFO(text);
    CHECK(count(R"("ended": true)") == 3);
    CHECK(count(R"("ended": false)") == (count(R"("rank": 0,)") == 1 ? 1 : 0));
    ++files;
  }
  CHECK(files == 2);
  std::filesystem::remove_all(folder);
}

/// Blocks rank 0 in a call that rank 1 never makes; another thread of rank 0 aborts the
/// communicator.
void abort_blocked_call(TestRanks& test_ranks, std::size_t count) {
  Rank rank(test_ranks);
  ncclComm_t comm = init_rank(test_ranks, rank.gpu);
  if (test_ranks.first() == 1) {
    require(error_within(comm, 15s) != ncclSuccess, "the peer's abort has not arrived");
    require_words(ncclGetLastError(comm), {"rank 0"});
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  } else {
    require(rank.enqueue(count, comm), "ncclAllReduce");
    ncclResult_t aborted = ncclInternalError;
    steady_clock::time_point started;
    std::thread aborter([&] {
      std::this_thread::sleep_for(300ms);
      started = steady_clock::now();
      aborted = ncclCommAbort(comm);
    });
    const bool ended = rank.gpu.done(rank.gpu.stream(), 10s);
    const auto end = steady_clock::now();
    aborter.join();
    require(ended, "the abort has not ended the kernel");
    require(aborted, "ncclCommAbort");
    require(end >= started, "the kernel ended before the abort");
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(end - started);
    std::printf("%zu elements: the kernel ended %.1f ms after ncclCommAbort began\n", count,
                static_cast<double>(took.count()) / 1000);
    std::fflush(stdout);
    require(took < 1s, "the abort took too long");
    ncclResult_t state = ncclSuccess;
    expect_error(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument, "after the abort");
  }
  check_new_communicator(test_ranks.next_id(), rank, test_ranks.first(), 2);
}

TEST_CASE("ncclCommAbort from another thread ends a blocked kernel, and the GPU works on",
          "[req:1.12]") {
  for (const Load load : {Load{"one_shot", 3}, Load{"two_shot", 100'000}, Load{"stream", kMost}}) {
    INFO(load.algorithm);
    Environment environment(Variables{{"ORIEL_ALGORITHM", load.algorithm}});
    check_all_ok(run_ranks(
        LaunchMode::processes, 2,
        [&](TestRanks& test_ranks) { abort_blocked_call(test_ranks, load.count); }, 35s));
  }
}

/// Occupies all multiprocessors of the GPU but two until *end is not zero.
void occupy(RankGpu& gpu, const int* end) {
  int multiprocessors = 0;
  require_cuda(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, gpu.device()),
      "cudaDeviceGetAttribute");
  auto* const started = reinterpret_cast<int*>(gpu.allocate(sizeof(int), false));
  int running = 0;
  gpu.copy_in(started, &running, sizeof(int));
  require_cuda(static_cast<cudaError_t>(
                   fill_multiprocessors(end, started, multiprocessors - 2, gpu.stream(1))),
               "filling the GPU");
  const auto until = steady_clock::now() + kTimeout;
  while (running < multiprocessors - 2 && steady_clock::now() < until) {
    gpu.copy_out(&running, started, sizeof(int));
  }
  require(running == multiprocessors - 2, fmt::format("only {} CTAs run", running));
}

/// Makes a call between two nodes, of which few CTAs can start on the GPU of rank 0.
void call_on_full_gpu(TestRanks& test_ranks) {
  const Environment node(Variables{{"ORIEL_HOSTID", fmt::format("node {}", test_ranks.first())}});
  Rank rank(test_ranks);
  ncclComm_t comm = init_rank(test_ranks, rank.gpu);
  require(rank.enqueue(kMost, comm), "ncclAllReduce");  // loads the kernel
  rank.gpu.wait(rank.gpu.stream(), comm);
  void* word = nullptr;
  require_cuda(cudaHostAlloc(&word, sizeof(int), cudaHostAllocDefault), "cudaHostAlloc");
  int* const end = static_cast<int*>(word);
  *end = 0;
  if (test_ranks.first() == 0) occupy(rank.gpu, end);
  test_ranks.barrier();
  require(rank.enqueue(kMost, comm), "ncclAllReduce on a full GPU");
  const ncclResult_t error = error_within(comm, 15s);
  require(rank.gpu.done(rank.gpu.stream(), 10s), "the kernel has not ended");
  __atomic_store_n(end, 1, __ATOMIC_RELEASE);
  rank.gpu.wait(rank.gpu.stream(1), nullptr);
  require(error != ncclSuccess, "no error on a full GPU");
  check_refusals(rank, comm, error, {"rank 0", "its own CTAs"});
  require_cuda(cudaFreeHost(word), "cudaFreeHost");
}

TEST_CASE("CTAs of a collective among nodes that cannot start are named after the timeout, by all",
          "[D9]") {
  const Environment environment(
      Variables{{"ORIEL_COLLECTIVE_TIMEOUT", "3s"}, {"ORIEL_CTAS", "24"}});
  check_all_ok(run_ranks(LaunchMode::processes, 2, call_on_full_gpu, 60s));
}

/// Makes one call of each kind in each of `buffers`, and checks the results. Returns the error of
/// the call that failed. Counts the calls in `calls`.
ncclResult_t make_calls(RankGpu& gpu, ncclComm_t comm, int rank, float* const (&buffers)[2],
                        std::size_t most_blocks, std::atomic<std::uint64_t>& calls) {
  std::vector<float> values(most_blocks * static_cast<std::size_t>(kRanks));
  for (int call = 0; call < 2 * kKinds; ++call) {
    const auto kind = static_cast<Kind>(call % kKinds);
    float* const in = buffers[call / kKinds];
    float* const out = in + values.size();
    const std::size_t count = call % 2 == 0 ? 7 : most_blocks;
    values.assign(values.size(), static_cast<float>(rank + call));
    gpu.copy_in(in, values.data(), values.size() * 4);
    const ncclResult_t result = enqueue(kind, in, out, count, rank, comm, gpu.stream());
    if (result != ncclSuccess) return result;
    require(gpu.done(gpu.stream(), 15s), "a kernel does not end");
    if (const ncclResult_t error = async_error(comm); error != ncclSuccess) return error;
    const auto expected = outputs_of(kind, count, rank, static_cast<float>(call));
    std::vector<float> outputs(expected.size());
    gpu.copy_out(outputs.data(), out, outputs.size() * 4);
    require(outputs == expected, fmt::format("wrong data in a {}", name_of(kind)));
    calls += 1;
  }
  return ncclSuccess;
}

/// Makes and uses one communicator after the other until a call fails. If `stop`, no call may fail,
/// and four communicators are made.
void live(TestRanks& test_ranks, bool stop) {
  const int rank = test_ranks.first();
  RankGpu gpu(rank);
  constexpr std::size_t kBlock = 25'000;
  const std::size_t bytes = 2 * 4 * kBlock * static_cast<std::size_t>(kRanks);
  auto* const plain = reinterpret_cast<float*>(gpu.allocate(bytes, false));
  for (int cycle = 0; cycle < (stop ? 4 : 100'000); ++cycle) {
    const ncclUniqueId id = test_ranks.next_id();
    ncclComm_t comm = nullptr;
    if (ncclCommInitRank(&comm, kRanks, id, rank) != ncclSuccess) {
      require(!stop, std::string("a stop must not fail init: ") + ncclGetLastError(nullptr));
      return;
    }
    Buffer buffer(bytes);
    ncclWindow_t window = nullptr;
    ncclResult_t result = ncclCommWindowRegister(comm, buffer.at(), bytes, &window, 1);
    std::string text = result == ncclSuccess ? "" : ncclGetLastError(nullptr);
    if (result == ncclSuccess) {
      float* const buffers[] = {plain, reinterpret_cast<float*>(buffer.at())};
      result = make_calls(gpu, comm, rank, buffers, kBlock,
                          test_ranks.word(kCalls + static_cast<std::size_t>(rank)));
      if (result != ncclSuccess) text = ncclGetLastError(comm);
    }
    require(!stop || result == ncclSuccess, "a stop must not fail a call: " + text);
    if (result != ncclSuccess) require_words(text, {"rank"});
    require(ncclCommDestroy(comm), "ncclCommDestroy");
    if (result != ncclSuccess) return;
  }
}

TEST_CASE("if a GPU rank is killed or stopped at a random moment, no other rank hangs",
          "[req:1.41][req:5.21]") {
  const char* given = std::getenv("ORIEL_TEST_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  const char* rounds = std::getenv("ORIEL_TEST_KILLS");
  const int kills = rounds != nullptr ? std::atoi(rounds) : 6;
  WARN("ORIEL_TEST_SEED=" << seed << ", ORIEL_TEST_KILLS=" << kills);
  std::mt19937_64 rng(seed);
  Environment environment(Variables{{"ORIEL_TIMEOUT", "6s"}});
  for (int round = 0; round < kills + kills / 2; ++round) {
    const bool stop = round % 3 == 2;
    const bool early = round % 6 == 1;  // kills while CUDA or the first communicator starts
    const int victim = static_cast<int>(rng() % static_cast<std::uint64_t>(kRanks));
    const auto delay = std::chrono::microseconds(rng() % (early ? 1'500'000 : 150'000));
    INFO("round " << round << ": rank " << victim << (stop ? " stops" : " dies") << " after "
                  << delay.count() << " us" << (early ? " from its start" : ""));
    RankFixture fixture(LaunchMode::processes, kRanks,
                        [&](TestRanks& test_ranks) { live(test_ranks, stop); });
    if (!early) {
      REQUIRE(fixture.wait_for_word(kCalls + static_cast<std::size_t>(victim), 1, 30s));
    }
    std::this_thread::sleep_for(delay);
    if (stop) {
      fixture.kill(victim, SIGSTOP);
      std::this_thread::sleep_for(300ms);
      fixture.kill(victim, SIGCONT);
    } else {
      fixture.kill(victim, SIGKILL);
      fixture.shared().ids_failed = 1;  // the others stop waiting for an id that will not come
    }
    const auto results = fixture.collect(40s);
    for (int rank = 0; rank < kRanks; ++rank) {
      INFO("rank " << rank);
      const std::string& result = results[static_cast<std::size_t>(rank)];
      if (!stop && rank == victim) {
        CHECK(result.find("killed") != std::string::npos);
      } else if (!stop && result.find("no unique id") != std::string::npos) {
        SUCCEED("it was between two communicators");
      } else {
        CHECK(result == "ok");
      }
    }
  }
}

}  // namespace
}  // namespace oriel::test
