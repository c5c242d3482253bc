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
#include "comm/group/drawn_calls.hpp"
#include "comm/support/in_teams.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Random groups of calls on several communicators, each result against a reference.
namespace oriel::test {
namespace {

using kernels::Collective;

/// The world, a split of it, and a second world.
constexpr std::size_t kComms = 3;

/// How a buffer's memory is registered. Windows of `toggled` come and go between groups.
enum class Registration { window, toggled, buffer, none };
constexpr std::size_t kRegistrations = 4;

struct GuardedBuffer {
  std::byte* at = nullptr;
  std::size_t bytes = 0;
};

/// One rank's memory for the calls of a group: an area of each kind of registration.
class GroupMemory {
 public:
  static constexpr std::size_t kAreaBytes = 8 << 20;

  std::byte* area(Registration kind) {
    const auto i = static_cast<std::size_t>(kind);
    return kind <= Registration::toggled ? windows_[i].at() : plain_[i - 2].get();
  }
  void reset() { used_ = {}; }

  /// Returns `bytes` that are `skew` elements off alignment, with guards on both sides.
  GuardedBuffer take(Registration kind, std::size_t bytes, std::size_t element, std::size_t skew) {
    std::size_t& used = used_[static_cast<std::size_t>(kind)];
    const std::size_t begin = (used + kGuard + 63) / 64 * 64 + skew * element;
    used = begin + bytes + kGuard;
    require(used <= kAreaBytes, "the calls of a group have more memory than an area");
    std::fill_n(area(kind) + begin - kGuard, bytes + 2 * kGuard, kGuardByte);
    return {area(kind) + begin, bytes};
  }
  static bool is_guarded(const GuardedBuffer& buffer) {
    const auto is_kept = [](const std::byte* from) {
      return std::all_of(from, from + kGuard, [](std::byte byte) { return byte == kGuardByte; });
    };
    return buffer.at == nullptr ||
           (is_kept(buffer.at - kGuard) && is_kept(buffer.at + buffer.bytes));
  }

 private:
  static constexpr std::size_t kGuard = 32;
  static constexpr std::byte kGuardByte{0x5a};

  std::array<Buffer, 2> windows_ = {Buffer(kAreaBytes), Buffer(kAreaBytes)};
  std::array<std::unique_ptr<std::byte[]>, 2> plain_ = {std::make_unique<std::byte[]>(kAreaBytes),
                                                        std::make_unique<std::byte[]>(kAreaBytes)};
  std::array<std::size_t, kRegistrations> used_{};
};

/// One rank's communicator.
struct Member {
  ncclComm_t comm = nullptr;
  int rank = 0;
  int size = 0;
};

/// Draws where a rank has a buffer, which the other ranks need not know.
GuardedBuffer place(GroupMemory& memory, std::uint64_t seed, std::size_t bytes, DataType type) {
  return memory.take(static_cast<Registration>(seed % kRegistrations), bytes, size_of(type),
                     seed / 8 % 8);
}

/// One rank's part in a collective.
class CollectivePart {
 public:
  CollectivePart(const DrawnCollective& call, const Member& member, GroupMemory& memory)
      : call_(call), member_(member), reference_(call) {
    const int rank = member.rank;
    const bool sends = call.sends(rank), receives = call.receives(rank);
    const auto own = static_cast<std::size_t>(rank) * call.bytes();
    const auto take = [&](std::uint64_t which, std::size_t bytes) {
      return place(memory, mix(call.seed + which, static_cast<std::uint64_t>(rank)), bytes,
                   call.type);
    };
    in_place_ = call.in_place && sends && receives;
    const bool into_input = in_place_ && !receives_blocks(call.collective);
    if (sends && (!in_place_ || into_input)) input_ = take(1, call.sent_bytes());
    if (receives && !into_input) output_ = take(2, call.received_bytes());
    from_ = in_place_ && !into_input ? output_.at + own : input_.at;
    to_ = into_input ? input_.at + (sends_blocks(call.collective) ? own : 0) : output_.at;
    const auto& data = reference_.input(rank);
    if (sends) std::copy(data.begin(), data.end(), from_);
  }

  ncclResult_t issue() {
    const auto type = static_cast<ncclDataType_t>(call_.type);
    const auto [from, to, count, comm] = std::tuple(from_, to_, call_.count, member_.comm);
    switch (call_.collective) {
      case Collective::all_gather:
        return ncclAllGather(from, to, count, type, comm, nullptr);
      case Collective::broadcast:
        if (!call_.in_place) return ncclBroadcast(from, to, count, type, call_.root, comm, nullptr);
        return ncclBcast(in_place_ ? from : to, count, type, call_.root, comm, nullptr);
      case Collective::all_to_all:
        return pncclAlltoAll(from, to, count, type, comm, nullptr);
      case Collective::gather:
        return ncclGather(from, to, count, type, call_.root, comm, nullptr);
      case Collective::scatter:
        return ncclScatter(from, to, count, type, call_.root, comm, nullptr);
      default:
        return reduce(type);
    }
  }

  /// Returns a hash of what every rank of a world is to have alike, or 0.
  std::uint64_t check(bool exact) const {
    const int rank = member_.rank;
    require(GroupMemory::is_guarded(input_) && GroupMemory::is_guarded(output_),
            "bytes beside a buffer");
    const auto& data = reference_.input(rank);
    require(in_place_ || !call_.sends(rank) || std::equal(data.begin(), data.end(), from_),
            "the input is as it was");
    if (!call_.receives(rank)) return 0;
    const std::string wrong = reference_.compare(rank, to_, exact);
    require(wrong.empty(), "wrong output: " + wrong);
    return call_.collective == Collective::all_reduce ? hash_bytes(to_, call_.bytes()) : 0;
  }

 private:
  ncclResult_t reduce(ncclDataType_t type) {
    auto op = static_cast<ncclRedOp_t>(call_.op);
    std::uint64_t scalar = reference_.scalar(member_.rank);
    const bool scales = call_.op == ReduceOp::premul_sum;
    if (scales) {
      require(ncclRedOpCreatePreMulSum(&op, &scalar, type, ncclScalarHostImmediate, member_.comm),
              "ncclRedOpCreatePreMulSum");
    }
    ncclResult_t done = ncclSuccess;
    if (call_.collective == Collective::all_reduce) {
      done = ncclAllReduce(from_, to_, call_.count, type, op, member_.comm, nullptr);
    } else if (call_.collective == Collective::reduce_scatter) {
      done = pncclReduceScatter(from_, to_, call_.count, type, op, member_.comm, nullptr);
    } else {
      done = ncclReduce(from_, to_, call_.count, type, op, call_.root, member_.comm, nullptr);
    }
    if (scales) require(ncclRedOpDestroy(op, member_.comm), "ncclRedOpDestroy");
    return done;
  }

  DrawnCollective call_;
  Member member_;
  CollectiveReference reference_;
  GuardedBuffer input_, output_;
  std::byte* from_ = nullptr;  // null where the rank has no such buffer, which may be anything
  std::byte* to_ = nullptr;
  bool in_place_ = false;
};

/// One rank's send or receive.
class MessagePart {
 public:
  MessagePart(const DrawnMessage& message, bool is_send, const Member& member, GroupMemory& memory)
      : message_(message), is_send_(is_send), comm_(member.comm) {
    buffer_ = place(memory, mix(message.seed, is_send ? 1 : 2), message.bytes(), message.type);
    const auto data = message.data();
    if (is_send) std::copy(data.begin(), data.end(), buffer_.at);
  }

  ncclResult_t issue() {
    const auto type = static_cast<ncclDataType_t>(message_.type);
    return is_send_ ? ncclSend(buffer_.at, message_.count, type, message_.to, comm_, nullptr)
                    : pncclRecv(buffer_.at, message_.count, type, message_.from, comm_, nullptr);
  }
  void check() const {
    const auto data = message_.data();
    require(GroupMemory::is_guarded(buffer_), "bytes beside a buffer");
    require(std::equal(data.begin(), data.end(), buffer_.at), "the bytes of " + message_.text());
  }

 private:
  DrawnMessage message_;
  bool is_send_;
  ncclComm_t comm_;
  GuardedBuffer buffer_;
};

/// One rank's part in one call of a group.
class CallPart {
 public:
  CallPart(std::uint64_t seed, const DrawLimits& limits, const Member& member, GroupMemory& memory)
      : comm_(member.comm) {
    if (mix(seed, 1) % 4 != 0) {
      const auto call = draw_collective(seed, member.size, limits);
      text_ = call.text();
      collective_.emplace(call, member, memory);
      return;
    }
    const auto messages = draw_messages(seed, member.size, limits);
    text_ = fmt::format("{} messages among {} ranks, the first {}", messages.size(), member.size,
                        messages.front().text());
    for (const DrawnMessage& message : messages) {
      if (message.from == member.rank) messages_.emplace_back(message, true, member, memory);
      if (message.to == member.rank) messages_.emplace_back(message, false, member, memory);
    }
    needs_group_ = messages.size() > 1 || messages.front().from == messages.front().to;
  }

  bool needs_group() const { return needs_group_; }
  const std::string& text() const { return text_; }
  ncclComm_t comm() const { return comm_; }
  void issue() {
    if (collective_) require(collective_->issue(), text_.c_str());
    for (MessagePart& message : messages_) require(message.issue(), text_.c_str());
  }
  /// Returns what CollectivePart::check() does.
  std::uint64_t check(bool exact) const {
    try {
      for (const MessagePart& message : messages_) message.check();
      return collective_ ? collective_->check(exact) : 0;
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("{}: {}", text_, error.what()));
    }
  }

 private:
  ncclComm_t comm_;
  std::string text_;
  std::optional<CollectivePart> collective_;
  std::deque<MessagePart> messages_;
  bool needs_group_ = false;
};

/// What all ranks draw alike for a group.
struct DrawnGroup {
  struct Call {
    std::size_t comm = 0;
    std::uint64_t seed = 0;
    bool is_large = false;
  };
  std::uint64_t seed = 0;
  std::vector<Call> calls;
  std::optional<std::size_t> toggles_window;  ///< of this communicator
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

/// One rank: its communicators, memory and registrations.
class GroupRank {
 public:
  std::array<Member, kComms> members;
  GroupMemory memory;

  void know_members() {
    for (Member& member : members) {
      if (member.comm == nullptr) continue;
      require(ncclCommCount(member.comm, &member.size), "ncclCommCount");
      require(ncclCommUserRank(member.comm, &member.rank), "ncclCommUserRank");
    }
  }
  /// Notes the registration of a window, in whatever group is open.
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

  /// Draws this rank's parts, in the order of the calls. Ranks may name the communicators in any
  /// order.
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

  bool exact = true;              ///< sums have the reference's bits
  std::uint64_t hash_of_all = 0;  ///< of all all-reduces of the world

 private:
  std::array<ncclWindow_t, kComms> windows_{};
  std::array<void*, kComms> buffers_{};
  std::deque<CallPart> parts_;
};

/// The ranks of one player.
class GroupPlayer {
 public:
  GroupPlayer(Players& players, std::uint64_t seed, bool exact)
      : players_(players), ranks_(players.ranks().size()) {
    const auto first = players.init(), second = players.init();
    std::vector<void*> memory;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      ranks_[i].members[0].comm = first[i];
      ranks_[i].members[2].comm = second[i];
      ranks_[i].exact = exact;
      memory.push_back(ranks_[i].memory.area(Registration::window));
    }
    require(players.together([&](std::size_t i, int rank) {
      const std::uint64_t drawn = mix(seed, static_cast<std::uint64_t>(rank));
      const int color = drawn % 8 == 0 ? NCCL_SPLIT_NOCOLOR : static_cast<int>(drawn / 8 % 2);
      return ncclCommSplit(first[i], color, static_cast<int>(drawn >> 40), &split_of(i), nullptr);
    }),
            "ncclCommSplit");
    for (GroupRank& rank : ranks_) rank.know_members();
    players.register_windows(first, memory, GroupMemory::kAreaBytes);
  }

  void run(const DrawnGroup& group) {
    try {
      try_to_run(group);
    } catch (const std::exception& error) {
      std::string calls;
      for (const GroupRank& rank : ranks_) calls += rank.text();
      throw std::runtime_error(
          fmt::format("rank {}: {}; the group:{}", players_.first(), error.what(), calls));
    }
  }

  void end() {
    for (GroupRank& rank : ranks_) {
      players_.word(static_cast<std::size_t>(rank.members[0].rank)) = rank.hash_of_all;
      for (Member& member : rank.members) {
        if (member.comm != nullptr) require(ncclCommDestroy(member.comm), "ncclCommDestroy");
      }
    }
    players_.barrier();  // before the memory goes
    for (int rank = 0; rank < players_.size(); ++rank) {
      require(players_.word(static_cast<std::size_t>(rank)) == ranks_.front().hash_of_all,
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

  /// Returns whether the group of calls is to register the window of group.toggles_window.
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

  Players& players_;
  std::deque<GroupRank> ranks_;
  std::array<bool, kComms> is_registered_{};
};

/// A play of random groups.
struct GroupPlay {
  Cast cast;
  int groups;
  std::vector<int> nodes;  ///< of each rank
  bool deterministic = false;
  Variables variables{};

  /// Returns whether sums have the reference's bits.
  bool exact() const {
    return deterministic || std::count(nodes.begin(), nodes.end(), 0) == std::ssize(nodes);
  }
};

const Variables kShortRounds = {{"ORIEL_CHUNK", "512"}, {"ORIEL_SCRATCH_SIZE", "4M"}};
/// 5,000 groups together.
const GroupPlay kGroupPlays[] = {
    {Cast::processes, 600, {0, 0}},
    {Cast::processes, 500, {0, 0, 0}},
    {Cast::processes, 300, {0, 0, 0, 0, 0, 0}},
    {Cast::threads, 600, {0, 0}},
    {Cast::threads, 500, {0, 0, 0}},
    {Cast::threads, 300, {0, 0, 0, 0, 0}},
    {Cast::group, 400, {0, 0, 0, 0}},
    {Cast::processes, 500, {0, 1}, true},
    {Cast::processes, 300, {0, 1, 1}, false, kShortRounds},
    {Cast::processes, 300, {0, 0, 1, 1}, true, kShortRounds},
    {Cast::processes, 250, {0, 0, 1, 1}},
    {Cast::processes, 150, {0, 1, 2, 3}},
    {Cast::processes, 150, {0, 1, 0, 1, 0}, true},
    {Cast::processes, 150, {0, 0, 0, 1, 2, 2}},
};

void play_groups(const GroupPlay& of, std::uint64_t seed) {
  std::string nodes;
  for (const int node : of.nodes) nodes += std::to_string(node);
  INFO("ranks as " << name_of(of.cast) << " of nodes " << nodes);
  Variables variables = of.variables;
  if (of.deterministic) variables.emplace_back("ORIEL_DETERMINISTIC", "1");
  const Environment common(variables);
  const int groups = scaled(repeats(of.groups, 50));
  const auto body = [&](Players& players) {
    std::optional<Environment> own;
    if (of.cast == Cast::processes) {
      own.emplace(of_node(of.nodes[static_cast<std::size_t>(players.first())]));
    }
    GroupPlayer player(players, seed, of.exact());
    for (int i = 0; i < groups; ++i) {
      player.run(draw_group(mix(seed, static_cast<std::uint64_t>(i))));
    }
    player.end();
  };
  check_all_ok(play(of.cast, static_cast<int>(of.nodes.size()), body, std::chrono::seconds(120)));
}

}  // namespace

TEST_CASE("random groups of every call on several communicators give what a reference gives",
          "[req:5.21][req:5.8][req:5.10][req:5.11][req:3.16][req:3.17]") {
  const std::uint64_t seed = test_seed();
  std::uint64_t number = 0;
  for (const GroupPlay& one : kGroupPlays) play_groups(one, mix(seed, ++number));
}

}  // namespace oriel::test
