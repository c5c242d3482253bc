// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "comm/communicator/random_all_reduces.hpp"
#include "comm/group/call_parts.hpp"
#include "comm/group/drawn_calls.hpp"
#include "comm/support/in_teams.hpp"
#include "gpu/gpu_ranks.hpp"
#include "support/seed.hpp"

/// Tests random groups of calls on several communicators and streams of GPUs, against a reference.
namespace oriel::test {
namespace {

const int kGpus = gpus();  // skips the program without a GPU

/// Communicators: the world, and a split of it.
constexpr std::size_t kComms = 2;

/// GPU memory, registrable or from cudaMalloc. The test reads and writes a mirror in host memory.
class GpuGroupMemory final : public GroupMemory {
 public:
  explicit GpuGroupMemory(RankGpu& gpu) : gpu_(gpu) {
    for (std::size_t i = 0; i < kRegistrations; ++i) {
      areas_[i] = gpu.allocate(kAreaBytes, static_cast<Registration>(i) <= Registration::toggled);
      mirrors_[i].resize(kAreaBytes);
    }
  }
  std::byte* area(Registration kind) override { return areas_[static_cast<std::size_t>(kind)]; }
  std::byte* mirror(Registration kind) override {
    return mirrors_[static_cast<std::size_t>(kind)].data();
  }
  cudaStream_t stream(std::uint64_t drawn) override { return gpu_.stream(drawn % 2); }

  void upload() {
    for (std::size_t i = 0; i < kRegistrations; ++i) {
      const std::size_t bytes = used(static_cast<Registration>(i));
      if (bytes > 0) gpu_.copy_in(areas_[i], mirrors_[i].data(), bytes);
    }
  }
  void download() {
    for (std::size_t i = 0; i < kRegistrations; ++i) {
      const std::size_t bytes = used(static_cast<Registration>(i));
      if (bytes > 0) gpu_.copy_out(mirrors_[i].data(), areas_[i], bytes);
    }
  }

 private:
  RankGpu& gpu_;
  std::array<std::byte*, kRegistrations> areas_{};
  std::array<std::vector<std::byte>, kRegistrations> mirrors_;
};

/// One rank: its communicators and memory. Sums of floats must equal the reference bit by bit if
/// `exact`.
class GpuGroupRank {
 public:
  explicit GpuGroupRank(TestRanks& test_ranks, bool exact = true)
      : test_ranks_(test_ranks), exact_(exact), gpu_(test_ranks.first()), memory_(gpu_) {
    ncclComm_t& world = members_[0].comm;
    world = init_rank(test_ranks, gpu_);
    require(ncclCommSplit(world, test_ranks.first() % 2, -test_ranks.first(), &members_[1].comm,
                          nullptr),
            "ncclCommSplit");
    for (std::size_t i = 0; i < kComms; ++i) {
      Member& member = members_[i];
      require(ncclCommCount(member.comm, &member.size), "ncclCommCount");
      require(ncclCommUserRank(member.comm, &member.rank), "ncclCommUserRank");
      require(
          ncclCommWindowRegister(member.comm, memory_.area(Registration::window),
                                 GroupMemory::kAreaBytes, &windows_[i], NCCL_WIN_COLL_SYMMETRIC),
          "ncclCommWindowRegister");
    }
    require(ncclCommRegister(members_[0].comm, memory_.area(Registration::buffer),
                             GroupMemory::kAreaBytes, &buffer_),
            "ncclCommRegister");
  }

  void run(std::uint64_t seed) {
    prepare(seed);
    try {
      issue();
      memory_.download();
      for (const CallPart& part : parts_) {
        const std::uint64_t hash = part.check(exact_);
        if (part.comm() == members_[0].comm) hash_of_all_ += hash;
      }
    } catch (const std::exception& error) {
      std::string calls;
      for (const CallPart& part : parts_) calls += "\n  " + part.text();
      throw std::runtime_error(
          fmt::format("rank {}: {}; the group:{}", test_ranks_.first(), error.what(), calls));
    }
  }

  void end() {
    test_ranks_.word(static_cast<std::size_t>(test_ranks_.first())) = hash_of_all_;
    require(ncclCommDeregister(members_[0].comm, buffer_), "ncclCommDeregister");
    for (std::size_t i = 0; i < kComms; ++i) {
      require(ncclCommWindowDeregister(members_[i].comm, windows_[i]), "deregister");
    }
    test_ranks_.barrier();
    for (const Member& member : members_) require(ncclCommDestroy(member.comm), "ncclCommDestroy");
    test_ranks_.barrier();  // before the memory is freed
    for (int rank = 0; rank < test_ranks_.size(); ++rank) {
      require(test_ranks_.word(static_cast<std::size_t>(rank)) == hash_of_all_,
              fmt::format("rank {} has other bits of the world's all-reduces", rank));
    }
  }

 private:
  void prepare(std::uint64_t seed) {
    std::mt19937_64 rng(seed);
    memory_.reset();
    parts_.clear();
    const std::size_t calls = 1 + rng() % 12;
    const std::size_t large = rng() % 8 == 0 ? rng() % calls : calls;
    for (std::size_t i = 0; i < calls; ++i) {
      const std::size_t comm = rng() % kComms;
      const DrawLimits limits{.is_large = i == large, .any_inputs = exact_};
      parts_.emplace_back(rng(), limits, members_[comm], memory_);
    }
    in_group_ = calls > 1 || parts_.front().needs_group() || rng() % 2 == 0;
  }
  void issue() {
    memory_.upload();
    if (in_group_) require(ncclGroupStart(), "ncclGroupStart");
    for (CallPart& part : parts_) part.issue();
    if (in_group_) require(ncclGroupEnd(), "ncclGroupEnd");
    for (std::size_t i = 0; i < 2; ++i) gpu_.wait(gpu_.stream(i), members_[0].comm);
  }

  TestRanks& test_ranks_;
  bool exact_;
  RankGpu gpu_;
  GpuGroupMemory memory_;
  std::array<Member, kComms> members_;
  std::array<ncclWindow_t, kComms> windows_{};
  void* buffer_ = nullptr;
  std::deque<CallPart> parts_;
  bool in_group_ = true;
  std::uint64_t hash_of_all_ = 0;  // over all all-reduces of the world
};

/// One run of random groups.
struct GpuGroupRun {
  LaunchMode launch_mode;
  int ranks;
  int groups;
  const char* algorithm = "";  ///< for every call that can use it; empty: as the table says
};
/// Together 5,000 groups with ranks as threads.
constexpr GpuGroupRun kRuns[] = {
    {LaunchMode::threads, 2, 1600},          {LaunchMode::threads, 3, 1100},
    {LaunchMode::threads, 4, 1000},          {LaunchMode::threads, 8, 300},
    {LaunchMode::threads, 2, 400, "stream"}, {LaunchMode::threads, 4, 400, "stream"},
    {LaunchMode::threads, 8, 200, "stream"}, {LaunchMode::processes, 2, 100},
    {LaunchMode::processes, 4, 1000},
};

/// One run of random groups of processes on several nodes.
struct GpuNodesRun {
  int ranks;
  int of_a_node;  ///< ranks of a node; the last one may have fewer
  int groups;
  bool exact;  ///< with ORIEL_DETERMINISTIC, sums have the bits of one node
  Variables variables{};
};
const Variables kShortRounds = {{"ORIEL_CHUNK", "8192"}, {"ORIEL_SCRATCH_SIZE", "16M"}};
const Variables kRing = {{"NCCL_P2P_DISABLE", "1"}};
const GpuNodesRun kNodesRuns[] = {
    {2, 1, 400, false},       {2, 1, 200, true, kShortRounds},
    {2, 1, 100, true, kRing}, {3, 2, 200, false},
    {3, 2, 100, true},        {4, 2, 400, false, kShortRounds},
    {4, 1, 200, true},
};

}  // namespace

TEST_CASE("random groups of every call on GPUs give what a reference gives",
          "[req:5.21][req:5.8][req:5.10][req:5.2]") {
  // Limits CTAs so that the calls of both communicators of all ranks fit on one GPU, in any order.
  const Environment caps(Variables{{"ORIEL_MAX_CTAS", "2"}});
  const std::uint64_t seed = test_seed();
  std::uint64_t number = 0;
  for (const GpuGroupRun& one : kRuns) {
    ++number;
    // Processes that share a GPU have time slices of 2 ms.
    if (one.launch_mode == LaunchMode::processes && one.ranks > std::max(2, kGpus)) continue;
    CAPTURE(name_of(one.launch_mode), one.ranks, one.algorithm);
    const Environment algorithm(Variables{{"ORIEL_ALGORITHM", one.algorithm}});
    const std::uint64_t drawn = mix(seed, number);
    const auto body = [&](TestRanks& test_ranks) {
      GpuGroupRank rank(test_ranks);
      for (int i = 0; i < one.groups; ++i) rank.run(mix(drawn, static_cast<std::uint64_t>(i)));
      rank.end();
    };
    check_all_ok(run_ranks(one.launch_mode, one.ranks, body, std::chrono::seconds(120)));
  }
}

TEST_CASE("random groups of every call on GPUs of several nodes give what a reference gives",
          "[req:5.11][req:5.21][req:5.8][req:5.10]") {
  const std::uint64_t seed = test_seed();
  std::uint64_t number = 100;
  for (const GpuNodesRun& one : kNodesRuns) {
    ++number;
    // Processes that share a GPU have time slices of 2 ms. Three of them have both kinds of peers.
    if (one.ranks > std::max(3, kGpus)) continue;
    Variables variables = one.variables;
    variables.emplace_back("ORIEL_MAX_CTAS", "2");
    variables.emplace_back("ORIEL_DETERMINISTIC", one.exact ? "1" : "0");
    variables.emplace_back("ORIEL_COLLECTIVE_TIMEOUT", "20");
    const Environment common(variables);
    INFO(one.ranks << " ranks, " << one.of_a_node << " of a node, exact " << one.exact);
    const std::uint64_t drawn = mix(seed, number);
    const auto body = [&](TestRanks& test_ranks) {
      const Environment own(of_node(test_ranks.first() / one.of_a_node));
      GpuGroupRank rank(test_ranks, one.exact);
      const int groups = scaled(one.groups);
      for (int i = 0; i < groups; ++i) rank.run(mix(drawn, static_cast<std::uint64_t>(i)));
      rank.end();
    };
    const auto begin = std::chrono::steady_clock::now();
    check_all_ok(run_ranks(LaunchMode::processes, one.ranks, body, std::chrono::seconds(120)));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%d groups of %d ranks, %d of a node, exact %d: %.1f s\n", scaled(one.groups),
                one.ranks, one.of_a_node, one.exact, seconds.count());
    std::fflush(stdout);
  }
}

}  // namespace oriel::test
