// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "comm/communicator/random_all_reduces.hpp"
#include "comm/group/call_parts.hpp"
#include "comm/group/drawn_calls.hpp"
#include "comm/support/in_teams.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Random groups of calls on several communicators; every result is compared with a reference.
namespace oriel::test {
namespace {

/// Communicators: the world, a split of the world, and a second world.
constexpr std::size_t kComms = 3;

/// Group memory of CPU ranks.
class HostGroupMemory final : public GroupMemory {
 public:
  std::byte* area(Registration kind) override {
    const auto i = static_cast<std::size_t>(kind);
    return kind <= Registration::toggled ? windows_[i].at() : plain_[i - 2].get();
  }

 private:
  std::array<Buffer, 2> windows_ = {Buffer(kAreaBytes), Buffer(kAreaBytes)};
  std::array<std::unique_ptr<std::byte[]>, 2> plain_ = {std::make_unique<std::byte[]>(kAreaBytes),
                                                        std::make_unique<std::byte[]>(kAreaBytes)};
};

/// Draws of a group, equal on all ranks.
struct DrawnGroup {
  struct Call {
    std::size_t comm = 0;
    std::uint64_t seed = 0;
    bool is_large = false;
  };
  std::uint64_t seed = 0;
  std::vector<Call> calls;
  std::optional<std::size_t>
      toggles_window;  ///< communicator whose window the group toggles, if any
  bool window_in_group = false;
  std::optional<std::size_t> toggles_buffer;
  bool has_queries = false;
};

DrawnGroup draw_group(std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  DrawnGroup group;
  group.seed = rng();
  group.calls.resize(1 + rng() % 12);
  const bool on_one = rng() % 3 == 0;
  const std::size_t first = rng() % kComms;
  for (auto& call : group.calls) {
    call.comm = on_one ? first : rng() % kComms;
    call.seed = rng();
  }
  if (rng() % 12 == 0) group.calls[rng() % group.calls.size()].is_large = true;
  if (rng() % 12 == 0) group.toggles_window = rng() % kComms;
  group.window_in_group = rng() % 2 == 0;
  if (rng() % 8 == 0) group.toggles_buffer = rng() % kComms;
  group.has_queries = rng() % 4 == 0;
  return group;
}

/// One rank with its communicators, memory and registrations.
class GroupRank {
 public:
  std::array<Member, kComms> members;
  HostGroupMemory memory;

  void know_members() {
    for (Member& member : members) {
      if (member.comm == nullptr) continue;
      require(ncclCommCount(member.comm, &member.size), "ncclCommCount");
      require(ncclCommUserRank(member.comm, &member.rank), "ncclCommUserRank");
    }
  }
  /// Registers a window; inside an open group, only notes the call.
  void register_window(std::size_t comm) {
    if (members[comm].comm == nullptr) return;
    require(
        ncclCommWindowRegister(members[comm].comm, memory.area(Registration::toggled),
                               GroupMemory::kAreaBytes, &windows_[comm], NCCL_WIN_COLL_SYMMETRIC),
        "ncclCommWindowRegister");
  }
  void deregister_window(std::size_t comm) {
    if (members[comm].comm == nullptr) return;
    require(ncclCommWindowDeregister(members[comm].comm, std::exchange(windows_[comm], nullptr)),
            "ncclCommWindowDeregister");
  }
  void toggle_buffer(std::size_t comm) {
    if (members[comm].comm == nullptr) return;
    void*& handle = buffers_[comm];
    if (handle != nullptr) {
      require(ncclCommDeregister(members[comm].comm, std::exchange(handle, nullptr)),
              "ncclCommDeregister");
    } else {
      require(ncclCommRegister(members[comm].comm, memory.area(Registration::buffer),
                               GroupMemory::kAreaBytes, &handle),
              "ncclCommRegister");
    }
  }
  void query() const {
    for (const Member& member : members) {
      if (member.comm == nullptr) continue;
      int size = -1, rank = -1;
      require(ncclCommCount(member.comm, &size), "ncclCommCount");
      require(ncclCommUserRank(member.comm, &rank), "ncclCommUserRank");
      require(size == member.size && rank == member.rank, "a query's answer");
      require(state_of(member.comm), "the state of a communicator");
    }
  }

  /// Draws this rank's share of the calls, in call order. Ranks may name the communicators in
  /// different orders.
  void prepare(const DrawnGroup& group) {
    memory.reset();
    parts_.clear();
    auto calls = group.calls;
    const std::size_t turn = group.seed % 2 == 0 ? 0 : static_cast<std::size_t>(members[0].rank);
    if (group.seed % 3 == 0) {
      std::stable_sort(calls.begin(), calls.end(), [&](const auto& a, const auto& b) {
        return (a.comm + turn) % kComms < (b.comm + turn) % kComms;
      });
    }
    for (const auto& call : calls) {
      const Member& member = members[call.comm];
      if (member.comm == nullptr) continue;
      parts_.emplace_back(call.seed, DrawLimits{call.is_large, exact}, member, memory);
    }
  }
  bool needs_group() const {
    return parts_.size() > 1 || (parts_.size() == 1 && parts_.front().needs_group());
  }
  void issue(bool with_queries) {
    for (CallPart& part : parts_) {
      part.issue();
      if (with_queries) query();
    }
  }
  void check() {
    for (const CallPart& part : parts_) {
      const std::uint64_t hash = part.check(exact);
      if (part.comm() == members[0].comm) hash_of_all += hash;
    }
  }
  std::string text() const {
    std::string text;
    for (const CallPart& part : parts_) text += "\n  " + part.text();
    return text;
  }

  bool exact = true;              ///< sums must equal the reference bit by bit
  std::uint64_t hash_of_all = 0;  ///< sum of the hashes of the world's all-reduces

 private:
  std::array<ncclWindow_t, kComms> windows_{};
  std::array<void*, kComms> buffers_{};
  std::deque<CallPart> parts_;
};

/// The ranks of one process or thread.
class GroupRanks {
 public:
  GroupRanks(TestRanks& test_ranks, std::uint64_t seed, bool exact)
      : test_ranks_(test_ranks), ranks_(test_ranks.ranks().size()) {
    const auto first = test_ranks.init(), second = test_ranks.init();
    std::vector<void*> memory;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      ranks_[i].members[0].comm = first[i];
      ranks_[i].members[2].comm = second[i];
      ranks_[i].exact = exact;
      memory.push_back(ranks_[i].memory.area(Registration::window));
    }
    require(test_ranks.together([&](std::size_t i, int rank) {
      const std::uint64_t drawn = mix(seed, static_cast<std::uint64_t>(rank));
      const int color = drawn % 8 == 0 ? NCCL_SPLIT_NOCOLOR : static_cast<int>(drawn / 8 % 2);
      return ncclCommSplit(first[i], color, static_cast<int>(drawn >> 40), &split_of(i), nullptr);
    }),
            "ncclCommSplit");
    for (GroupRank& rank : ranks_) rank.know_members();
    test_ranks.register_windows(first, memory, GroupMemory::kAreaBytes);
  }

  void run(const DrawnGroup& group) {
    try {
      try_to_run(group);
    } catch (const std::exception& error) {
      std::string calls;
      for (const GroupRank& rank : ranks_) calls += rank.text();
      throw std::runtime_error(
          fmt::format("rank {}: {}; the group:{}", test_ranks_.first(), error.what(), calls));
    }
  }

  void end() {
    for (GroupRank& rank : ranks_) {
      test_ranks_.word(static_cast<std::size_t>(rank.members[0].rank)) = rank.hash_of_all;
      for (Member& member : rank.members) {
        if (member.comm != nullptr) require(ncclCommDestroy(member.comm), "ncclCommDestroy");
      }
    }
    test_ranks_.barrier();  // memory must outlive the communicators
    for (int rank = 0; rank < test_ranks_.size(); ++rank) {
      require(test_ranks_.word(static_cast<std::size_t>(rank)) == ranks_.front().hash_of_all,
              fmt::format("rank {} has other bits of the world's all-reduces", rank));
    }
  }

 private:
  ncclComm_t& split_of(std::size_t i) { return ranks_[i].members[1].comm; }

  void try_to_run(const DrawnGroup& group) {
    for (GroupRank& rank : ranks_) rank.prepare(group);
    const bool registers = change_registrations(group);
    const bool alone = !registers && ranks_.size() == 1 && !ranks_[0].needs_group();
    if (!alone) require(ncclGroupStart(), "ncclGroupStart");
    for (GroupRank& rank : ranks_) {
      if (registers) rank.register_window(*group.toggles_window);
      rank.issue(group.has_queries);
    }
    if (!alone) require(ncclGroupEnd(), "ncclGroupEnd");
    if (group.has_queries) ranks_.front().query();
    for (GroupRank& rank : ranks_) rank.check();
  }

  /// Returns true if `group` itself is to register the window of group.toggles_window.
  bool change_registrations(const DrawnGroup& group) {
    if (group.toggles_buffer) {
      for (GroupRank& rank : ranks_) rank.toggle_buffer(*group.toggles_buffer);
    }
    if (!group.toggles_window) return false;
    const std::size_t comm = *group.toggles_window;
    const bool registers = !std::exchange(is_registered_[comm], !is_registered_[comm]);
    if (registers && group.window_in_group) return true;
    if (registers) require(ncclGroupStart(), "ncclGroupStart");
    for (GroupRank& rank : ranks_) {
      registers ? rank.register_window(comm) : rank.deregister_window(comm);
    }
    if (registers) require(ncclGroupEnd(), "ncclGroupEnd");
    return false;
  }

  TestRanks& test_ranks_;
  std::deque<GroupRank> ranks_;
  std::array<bool, kComms> is_registered_{};
};

/// Parameters of one run of random groups.
struct GroupRun {
  LaunchMode launch_mode;
  int groups;
  std::vector<int> nodes;  ///< node of each rank
  bool deterministic = false;
  Variables variables{};

  /// Returns true if sums must equal the reference bit by bit.
  bool exact() const {
    return deterministic || std::count(nodes.begin(), nodes.end(), 0) == std::ssize(nodes);
  }
};

const Variables kShortRounds = {{"ORIEL_CHUNK", "512"}, {"ORIEL_SCRATCH_SIZE", "4M"}};
/// Runs of 5,000 groups in total.
const GroupRun kGroupRuns[] = {
    {LaunchMode::processes, 600, {0, 0}},
    {LaunchMode::processes, 500, {0, 0, 0}},
    {LaunchMode::processes, 300, {0, 0, 0, 0, 0, 0}},
    {LaunchMode::threads, 600, {0, 0}},
    {LaunchMode::threads, 500, {0, 0, 0}},
    {LaunchMode::threads, 300, {0, 0, 0, 0, 0}},
    {LaunchMode::group, 400, {0, 0, 0, 0}},
    {LaunchMode::processes, 500, {0, 1}, true},
    {LaunchMode::processes, 300, {0, 1, 1}, false, kShortRounds},
    {LaunchMode::processes, 300, {0, 0, 1, 1}, true, kShortRounds},
    {LaunchMode::processes, 250, {0, 0, 1, 1}},
    {LaunchMode::processes, 150, {0, 1, 2, 3}},
    {LaunchMode::processes, 150, {0, 1, 0, 1, 0}, true},
    {LaunchMode::processes, 150, {0, 0, 0, 1, 2, 2}},
};

void run_groups(const GroupRun& of, std::uint64_t seed) {
  std::string nodes;
  for (const int node : of.nodes) nodes += std::to_string(node);
  INFO("ranks as " << name_of(of.launch_mode) << " of nodes " << nodes);
  Variables variables = of.variables;
  if (of.deterministic) variables.emplace_back("ORIEL_DETERMINISTIC", "1");
  const Environment common(variables);
  const int groups = scaled(repeats(of.groups, 50));
  const auto body = [&](TestRanks& test_ranks) {
    std::optional<Environment> own;
    if (of.launch_mode == LaunchMode::processes) {
      own.emplace(of_node(of.nodes[static_cast<std::size_t>(test_ranks.first())]));
    }
    GroupRanks group(test_ranks, seed, of.exact());
    for (int i = 0; i < groups; ++i) {
      group.run(draw_group(mix(seed, static_cast<std::uint64_t>(i))));
    }
    group.end();
  };
  check_all_ok(run_ranks(of.launch_mode, static_cast<int>(of.nodes.size()), body,
                         std::chrono::seconds(120)));
}

}  // namespace

TEST_CASE("random groups of every call on several communicators give what a reference gives",
          "[req:5.21][req:5.8][req:5.10][req:5.11][req:3.16][req:3.17]") {
  const std::uint64_t seed = test_seed();
  std::uint64_t number = 0;
  for (const GroupRun& one : kGroupRuns) run_groups(one, mix(seed, ++number));
}

}  // namespace oriel::test
