// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "oriel/device/network.hpp"
#include "oriel/device/wait.hpp"
#include "oriel/error.hpp"
#include "oriel/types.hpp"

#include "kernels/plan/arguments.hpp"
#include "kernels/plan/channel_layout.hpp"
#include "kernels/plan/collective.hpp"
#include "kernels/plan/faster_way.hpp"
#include "kernels/plan/layout.hpp"

/// An exchange: what one rank sends to and receives from others in one launch, over channels.
/// Collectives that do not reduce, and groups of sends and receives, are planned as exchanges.
/// Ranks are those of the communicator. All functions here are pure.
namespace oriel::kernels {

/// A buffer that goes to, or comes from, one other rank.
struct Message {
  /// A sender stores straight into what a team member receives at an address of its own slot of the
  /// flat space.
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::int32_t peer = 0;
  /// Below 2^kSignatureBits; equal at both ends if these mean the same message.
  std::uint32_t signature = 0;
};

/// A copy inside this rank. The ranges are equal or do not overlap.
struct LocalCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::uint64_t bytes = 0;
};

/// What one rank does in one exchange, before it is cut into launches. Messages to one peer leave
/// in the order of the list, and so do those from one peer.
struct Exchange {
  std::vector<Message> sends;
  std::vector<Message> receives;
  std::vector<LocalCopy> copies;
  std::uint32_t signature = 0;  ///< of all messages of a collective
};

/// A collective as one rank calls it.
struct RankCollective {
  Collective collective = Collective::broadcast;
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  std::int32_t root = 0;  ///< where has_root()
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::uint64_t count = 0;  ///< elements of a block: what a rank sends to, or gets from, another
  DataType type = DataType::u8;
};

/// Sets `exchange`, whose memory is used again, to what `call` does as one. `call` does not
/// reduce.
void set_exchange(Exchange& exchange, const RankCollective& call);

/// Returns a broadcast among LSA teams as exchanges that follow each other. `teams` has the ranks
/// of each. The root sends a part of the message to one rank of each other team, which passes it on
/// to its team while the next part comes.
std::vector<Exchange> broadcast_among_teams(const RankCollective& call,
                                            const std::vector<std::vector<int>>& teams);

/// A send or a receive of a group, in the order of the calls.
struct PointToPoint {
  bool is_send = true;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::int32_t peer = 0;
};

/// Sets `exchange`, whose memory is used again, to a group's sends and receives at `rank`. The i-th
/// send to this rank itself meets the i-th receive from it: invalid_usage if their numbers or sizes
/// differ.
Status set_exchange(Exchange& exchange, std::span<const PointToPoint> calls, int rank);

/// What one launch carries. Passed by value to a kernel, within 4 KiB.
inline constexpr int kMostMessages = 120;  // two for each pair of 60 rounds
inline constexpr int kMostCopies = 8;

/// The messages of one launch to one rank, or from one.
struct MessageRun {
  std::uint16_t stream = 0;      ///< GPUs: the first stream; one for each lane that the run uses
  std::uint8_t message = 0;      ///< the first one
  std::uint8_t team_member = 0;  ///< one more than the peer's index in this LSA team; 0: not in it
};

/// How a CPU rank reads what a member of its LSA team has outside windows.
struct PeerProcess {
  enum class Reach : std::uint8_t { none, own_process, other_process };
  Reach reach = Reach::none;
  std::int32_t pid = 0;  ///< of another process
  FasterWay way{};       ///< of long messages from another process
};

/// What a CPU rank lends to the receivers of its messages, in its scratch memory. A rank whose call
/// fails while a message is lent takes back all that it has lent, for ever: its user owns the
/// memory again.
///
/// Memory order. The rank stores `is_taken_back`, then its user changes the memory. A receiver
/// copies, and then loads that word: what it has copied is good if it is 0. In the rank's own
/// process the memory may be gone as well. So such a receiver counts itself in `readers` before it
/// looks at the word and copies; the rank waits for them behind its store. Both in one total order.
struct Lending {
  std::uint32_t is_taken_back;
  std::uint32_t readers;  ///< threads of this process that copy
};

/// Where the channels of a rank lie, and how it waits: what all its launches share.
struct ExchangeMemory {
  std::byte* scratch = nullptr;    ///< the scratch buffer of rank 0 of the team
  std::byte* flat_base = nullptr;  ///< of the team's addresses: slot 0, offset 0
  std::uint32_t stride_4g = 0;     ///< distance of two slots, in units of 4 GiB
  std::int32_t rank = 0;           ///< index in the team
  std::int32_t ranks = 1;          ///< of the team
  std::int32_t world_rank = 0;
  ChannelLayout channels;      ///< inside the team
  ChannelLayout far_channels;  ///< to ranks of other teams
  /// What reaches ranks of other teams; null if there are none.
  const device::NetworkView* network = nullptr;
  const device::NetworkWindow* network_window = nullptr;  ///< of the scratch memory
  std::uint64_t doorbell = 0;  ///< CPU ranks: offset of the Doorbell in the scratch memory
  /// CPU ranks: by index in the team. Null: no peer's memory can be read outside windows.
  PeerProcess* processes = nullptr;
  device::WaitControl wait;
  CallFailure* failure = nullptr;
  /// GPU ranks, as HierarchyArguments: offsets of where a collective exchanges signatures, and of
  /// their count; 0 for sends and receives.
  std::uint64_t signatures = 0;
  std::uint64_t signature_calls = 0;
};

/// What the messages of a launch have in common. Code that knows it leaves out the rest.
enum class ExchangeForm : std::uint8_t {
  any,      ///< some peers may be of other teams
  near,     ///< all peers are of this team
  packets,  ///< and all messages go in packets
};

/// All that one launch of an exchange needs.
struct ExchangeArguments : ExchangeMemory {
  std::uint32_t signature = 0;  ///< of a collective, for the other ranks of a GPU's team
  ExchangeForm form = ExchangeForm::packets;

  std::int32_t ctas = 1;
  std::int32_t copies = 0;
  std::int32_t sends = 0;      ///< messages [0, sends) are sent,
  std::int32_t messages = 0;   ///< messages [sends, messages) are received
  std::int32_t send_runs = 0;  ///< runs [0, send_runs) are sent,
  std::int32_t runs = 0;       ///< runs [send_runs, runs) are received
  LocalCopy copy[kMostCopies];
  /// Run after run, and within a run in the order of the calls.
  Message message[kMostMessages];
  /// One entry more ends the last.
  MessageRun run[kMostMessages + 1];
};

static_assert(sizeof(ExchangeArguments) <= 4096);

/// Facts that the launches of one communicator share.
struct ExchangeFacts {
  ExchangeMemory memory;
  std::int32_t world_size = 1;
  /// GPUs: the most CTAs of a launch, all of which run at once.
  int most_ctas = 1;
  int most_messages = kMostMessages;
  /// By rank: its index in this LSA team, or -1.
  std::vector<std::int16_t> team_index;

  /// Returns the index of `rank` in this LSA team, or -1.
  std::int32_t index_of(std::int32_t rank) const {
    return team_index[static_cast<std::size_t>(rank)];
  }
};

/// Launches, in the order in which they run. Their memory is used again after clear(): a call plans
/// without an allocation. All launches of a list have the same ExchangeMemory, which is copied into
/// each but once, except for what a planner changes: `wait` and the signatures.
class LaunchList {
 public:
  void clear() { size_ = 0; }
  void drop_last() { --size_; }
  /// Appends a launch without messages and copies.
  ExchangeArguments& add(const ExchangeMemory& memory) {
    if (size_ == launches_.size()) {
      static_cast<ExchangeMemory&>(launches_.emplace_back()) = memory;
    }
    ExchangeArguments& launch = launches_[size_++];
    launch.wait = memory.wait;
    launch.signatures = memory.signatures;
    launch.signature_calls = memory.signature_calls;
    launch.signature = 0;
    launch.form = ExchangeForm::packets;
    launch.ctas = 1;
    launch.copies = launch.sends = launch.messages = launch.send_runs = launch.runs = 0;
    launch.run[0] = {};
    return launch;
  }

  std::size_t size() const { return size_; }
  const ExchangeArguments& operator[](std::size_t index) const { return launches_[index]; }
  ExchangeArguments* begin() { return launches_.data(); }
  ExchangeArguments* end() { return launches_.data() + size_; }
  const ExchangeArguments* begin() const { return launches_.data(); }
  const ExchangeArguments* end() const { return launches_.data() + size_; }

 private:
  std::vector<ExchangeArguments> launches_;
  std::size_t size_ = 0;
};

/// Cuts an exchange into launches, and appends them. Launches of one rank run one after the other.
///
/// A message with number i among those to its peer, which is `d` ranks to the right, belongs to
/// round (i, d); its receiver computes the same. A launch holds whole rounds, in their order. So a
/// launch waits only for messages of rounds that the peer's launches reach without waiting for a
/// later launch of this rank: any cut is free of deadlock.
void plan_exchange(const Exchange& exchange, const ExchangeFacts& facts, LaunchList& launches);

/// Runs a launch on the calling thread, which is the rank, until all its messages have passed.
/// Returns false if a wait was given up: buffers then hold anything.
[[nodiscard]] bool run_exchange_on_host(const ExchangeArguments& arguments);

}  // namespace oriel::kernels
