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

/// Plans exchanges. An exchange is the set of messages that one rank sends and receives over
/// channels. Collectives that do not reduce, short reduces of two CPU ranks, and groups of sends
/// and receives are planned as exchanges. Ranks are those of the communicator. All functions here
/// are pure, except those whose names end in _on_host.
namespace oriel::kernels {

/// A message to or from one other rank.
struct Message {
  /// Receive buffer or send buffer. If a receive buffer is an address in this rank's slot of the
  /// flat space, a sender of its team may store there directly. If a send buffer is, a receiver on
  /// the same GPU may load from there.
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::int32_t peer = 0;
  /// Below 2^kSignatureBits; equal at both ends if both expect the same message.
  std::uint32_t signature = 0;
};

/// A copy that this rank makes: inside its own memory, or by copy engines also from or to a peer's
/// memory. The ranges are equal or do not overlap.
struct LocalCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::uint64_t bytes = 0;
};

/// Messages and copies of one rank in one exchange, before it is cut into launches. Messages to one
/// peer are sent in the order of the list. Messages from one peer are received in that order.
struct Exchange {
  std::vector<Message> sends;
  std::vector<Message> receives;
  std::vector<LocalCopy> copies;
  std::uint32_t signature = 0;  ///< collective's signature (see set_exchange), else 0
};

/// Arguments of a collective call on one rank.
struct RankCollective {
  Collective collective = Collective::broadcast;
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  std::int32_t root = 0;  ///< only if has_root(collective)
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::uint64_t count = 0;  ///< elements of a block, the data between two ranks
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;  ///< only if it is a reduce
};

/// Sets `exchange` to the messages of `call`. A reduce must have two ranks: the other rank sends
/// its input to the root's `output`, and the root folds it later (PairFold). Other reductions are
/// not exchanges. Reuses the memory of `exchange`.
void set_exchange(Exchange& exchange, const RankCollective& call);

/// Returns a broadcast among LSA teams as consecutive exchanges. `teams` has the ranks of each
/// team. The root sends each part to one rank of every other team. That rank forwards the part to
/// its team while the next part arrives.
std::vector<Exchange> broadcast_among_teams(const RankCollective& call,
                                            const std::vector<std::vector<int>>& teams);

/// A send or a receive of a group, in call order.
struct PointToPoint {
  bool is_send = true;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::int32_t peer = 0;
};

/// Sets `exchange` to a group's sends and receives at `rank`. Reuses the memory of `exchange`. The
/// i-th send to this rank itself matches the i-th receive from it. Returns invalid_usage if their
/// numbers or sizes differ.
Status set_exchange(Exchange& exchange, std::span<const PointToPoint> calls, int rank);

/// Limits of one launch, whose arguments are passed by value to a kernel, within 4 KiB.
inline constexpr int kMostMessages = 120;  // 60 rounds of a send and a receive
inline constexpr int kMostCopies = 8;

/// The messages of one launch to one peer, or from one peer.
struct MessageRun {
  std::uint16_t stream = 0;  ///< GPUs: first stream of the run, which has one stream per channel
  std::uint8_t message = 0;  ///< index of the first message
  std::uint8_t team_member = 0;  ///< 1 + the peer's index in this LSA team; 0: not in it
};

/// Describes how a CPU rank reads memory of a team member outside windows.
struct PeerProcess {
  enum class Reach : std::uint8_t { none, own_process, other_process };
  Reach reach = Reach::none;
  std::int32_t pid = 0;  ///< other_process only
  FasterWay way{};       ///< chooses how long messages from another process travel
};

/// Permission of a CPU rank for the receivers of its messages to read its memory (rendezvous read).
/// It lies in the rank's scratch memory. If a call fails while a message may still be read, the
/// rank revokes the permission for ever. Its user then owns the memory again.
///
/// Memory order. The rank stores `is_revoked` before its user changes the memory. A receiver
/// copies and then loads `is_revoked`: the copy is valid if the word is 0. If the receiver is in
/// the rank's own process, the memory may even be freed. So such a receiver increments `readers`
/// before it loads `is_revoked` and copies. After its store the rank waits until `readers` is 0.
/// The accesses of both are sequentially consistent, except the decrement of `readers`: a release.
struct ReadPermission {
  std::uint32_t is_revoked;
  std::uint32_t readers;  ///< threads of this process that copy at present
};

/// State that all launches of a communicator share: the places of the channels, and how to wait.
struct ExchangeMemory {
  std::byte* scratch = nullptr;    ///< the scratch buffer of rank 0 of the team
  std::byte* flat_base = nullptr;  ///< address of slot 0, offset 0 of the team's flat space
  std::uint32_t stride_4g = 0;     ///< distance between consecutive slots, in units of 4 GiB
  std::int32_t rank = 0;           ///< index in the team
  std::int32_t ranks = 1;          ///< ranks of the team
  std::int32_t world_rank = 0;
  ChannelLayout channels;      ///< inside the team
  ChannelLayout far_channels;  ///< to ranks of other teams
  /// Queues to ranks of other teams; null if there are none.
  const device::NetworkView* network = nullptr;
  const device::NetworkWindow* network_window = nullptr;  ///< window of the scratch memory
  std::uint64_t doorbell = 0;  ///< CPU ranks: offset of the Doorbell in the scratch memory
  /// CPU ranks: one entry per index in the team. Null: no peer's memory can be read outside
  /// windows.
  PeerProcess* processes = nullptr;
  device::WaitControl wait;
  CallFailure* failure = nullptr;
  /// GPU ranks, like HierarchyArguments: offsets of the words in which collectives exchange
  /// signatures, and of the count of such calls. 0 if a launch exchanges none.
  std::uint64_t signatures = 0;
  std::uint64_t signature_calls = 0;
};

/// Properties shared by all messages of a launch. Kernels are specialised for each form.
enum class ExchangeForm : std::uint8_t {
  any,      ///< some peers may be of other teams
  near,     ///< all peers are of this team
  packets,  ///< all peers are of this team and all messages go in packets
  wide,     ///< like near; GPUs: several warps move each stream
  one_gpu,  ///< like wide or near; all ranks are one team and share a GPU
};
inline constexpr std::size_t kExchangeForms = 5;

/// Parts into which `pulled_parts` cuts a message.
inline constexpr std::int16_t kPulledParts = 16;

/// Arguments of one launch of an exchange.
struct ExchangeArguments : ExchangeMemory {
  std::uint32_t signature = 0;  ///< GPUs: signature of the collective, for the team
  ExchangeForm form = ExchangeForm::packets;

  std::int32_t ctas = 1;
  std::int32_t stream_warps = 1;  ///< GPUs: warps that move one stream
  /// one_gpu only: parts of each long message that its receiver copies, if the data are in a window
  std::int16_t pulled_parts = 0;
  /// near and wide only: the first CTAs only send, the others receive and copy; 0: all do both
  std::int16_t send_ctas = 0;
  std::int32_t copies = 0;
  std::int32_t sends = 0;      ///< messages [0, sends) are sent,
  std::int32_t messages = 0;   ///< messages [sends, messages) are received
  std::int32_t send_runs = 0;  ///< runs [0, send_runs) are sent,
  std::int32_t runs = 0;       ///< runs [send_runs, runs) are received
  LocalCopy copy[kMostCopies];
  /// Messages in the order of the runs, and within a run in call order.
  Message message[kMostMessages];
  /// Runs, and one more entry that marks the end of the last run.
  MessageRun run[kMostMessages + 1];
};

static_assert(sizeof(ExchangeArguments) <= 4096);

/// Facts that the launches of one communicator share.
struct ExchangeFacts {
  ExchangeMemory memory;
  std::int32_t world_size = 1;
  /// GPUs: largest number of CTAs of a launch, all of which run at once. 0 on CPUs.
  int most_ctas = 1;
  int most_messages = kMostMessages;
  bool on_one_gpu = false;  ///< all ranks are one LSA team and share a GPU
  /// Index of each rank in this LSA team, or -1.
  std::vector<std::int16_t> team_index;

  /// Returns the index of `rank` in this LSA team, or -1.
  std::int32_t index_of(std::int32_t rank) const {
    return team_index[static_cast<std::size_t>(rank)];
  }
};

/// List of launches, in the order in which they run. clear() keeps the memory, so that a call plans
/// without an allocation. All launches of a list have the same ExchangeMemory. It is copied into
/// each element once; only the signature offsets are set again by add().
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
    launch.signatures = memory.signatures;
    launch.signature_calls = memory.signature_calls;
    launch.signature = 0;
    launch.form = ExchangeForm::packets;
    launch.ctas = launch.stream_warps = 1;
    launch.send_ctas = launch.pulled_parts = 0;
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

/// Cuts an exchange into launches, and appends these. Launches of one rank run one after the other.
///
/// Deadlock freedom: a message with number i among those to its peer, which is `d` ranks to the
/// right, belongs to round (i, d). Its receiver computes the same round. A launch holds whole
/// rounds, in their order. So a launch waits only for messages that the peer's launches reach
/// without waiting for a later launch of this rank. Hence every cut is free of deadlock.
void plan_exchange(const Exchange& exchange, const ExchangeFacts& facts, LaunchList& launches);

/// Returns whether run_short_exchange_on_host() may run the exchange. This rank must be on a CPU
/// and drive no queues. Each message must fit into one slot, and all into one launch.
[[nodiscard]] bool is_short(const Exchange& exchange, const ExchangeFacts& facts);

/// Makes the copies of an exchange, and moves its messages in order as far as they can move at
/// once. Removes them from `exchange`. Returns whether nothing is left. What is left is to be
/// planned and run as usual. This way needs no plan, so it is faster. CPU ranks only.
[[nodiscard]] bool run_short_exchange_on_host(Exchange& exchange, const ExchangeFacts& facts);

/// Last step of a reduce between two CPU ranks: combines both inputs into the root's output. Uses
/// the loops of all reductions of CPU ranks, so the results have the same bits.
struct PairFold {
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;  ///< not premul_sum
  std::uint64_t count = 0;
  const std::byte* inputs[2] = {};  ///< in rank order
  std::byte* output = nullptr;      ///< may be the root's input
};
inline constexpr std::size_t kMostFoldBytes = 4 << 10;
void fold_pair_on_host(const PairFold& fold);

/// Runs a launch on the calling thread, which is the rank. Blocks until all messages are complete.
/// Returns false if a wait was aborted or timed out, or if a peer is in another call. The contents
/// of the buffers are then undefined.
[[nodiscard]] bool run_exchange_on_host(const ExchangeArguments& arguments);

}  // namespace oriel::kernels
