// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/copy_engines.hpp"

namespace oriel::kernels {
namespace {

/// Smallest block for copy engines. Kernels of an all-gather are faster up to blocks of 16 MiB,
/// since copies run one after another and each takes some us to start. On 4 H200, these kernels
/// take 0.72 of the time with blocks of 4 MiB and 0.95 with 16 MiB (docs/performance.md). From
/// 4 MiB on the loss is a fair price for free multiprocessors.
constexpr std::uint64_t kLeastBlockBytes = 4 << 20;

std::uint64_t block_bytes(const RankCollective& call) {
  return call.count * size_of(call.type);
}

/// Returns whether the shared buffer holds the blocks of all ranks in rank order, because the call
/// is in place.
bool shares_all_blocks(const RankCollective& call) {
  const std::uint64_t own = block_bytes(call) * static_cast<std::uint64_t>(call.rank);
  switch (call.collective) {
    case Collective::all_gather:
      return call.input == call.output + own;
    case Collective::gather:
      return call.rank == call.root && call.input == call.output + own;
    case Collective::scatter:
      return call.rank == call.root && call.output == call.input + own;
    default:
      return false;
  }
}

/// A barrier of a call.
enum class Barrier : std::uint8_t { entry = 1, exit = 2 };

/// Plans the tokens and copies of one rank in one call.
class EnginePlanner {
 public:
  EnginePlanner(const RankCollective& call, const SharedPlace& place, CopyEnginePlan& plan)
      : call_(call),
        place_(place),
        bytes_(block_bytes(call)),
        step_(shares_all_blocks(call) ? bytes_ : 0),
        plan_(plan) {
    for (Exchange* const exchange : {&plan.entry, &plan.exit}) {
      exchange->sends.clear();
      exchange->receives.clear();
      exchange->copies.clear();
    }
    plan.copies.clear();
    plan.copies_own_block = false;
    plan.entry.signature = hash_of_call(Barrier::entry, 0);
    plan.exit.signature = hash_of_call(Barrier::exit, 0);
  }

  void make() {
    const bool is_rooted = has_root(call_.collective);
    if (is_rooted && call_.rank != call_.root) {
      // This rank makes no copies: one exchange notifies the root, and waits for the root's copies.
      send(plan_.entry, Barrier::entry, call_.root);
      receive(plan_.entry, Barrier::exit, call_.root);
      return;
    }
    for (int distance = 1; distance < call_.ranks; ++distance) {
      const int right = (call_.rank + distance) % call_.ranks;
      const int left = (call_.rank + call_.ranks - distance) % call_.ranks;
      if (!is_rooted) send(plan_.entry, Barrier::entry, right);
      receive(plan_.entry, Barrier::entry, left);
      copy(right);
      send(plan_.exit, Barrier::exit, right);
      if (!is_rooted) receive(plan_.exit, Barrier::exit, left);
    }
    copy(call_.rank);
  }

 private:
  /// Returns the offset in its slot of the block that is copied from or to `rank`.
  std::uint64_t offset_of(int rank) const {
    return place_.offset + step_ * static_cast<std::uint64_t>(rank);
  }
  std::byte* shared(int rank) const {
    const std::uint64_t slot = std::uint64_t{place_.stride_4g} << 32;
    return place_.flat_base + slot * static_cast<std::uint64_t>(rank) + offset_of(rank);
  }

  std::uint32_t hash_of_call(Barrier barrier, std::uint64_t offset) const {
    const int root = has_root(call_.collective) ? call_.root : 0;
    auto hash = static_cast<std::uint64_t>(barrier);
    for (const std::uint64_t value :
         {bytes_, static_cast<std::uint64_t>(call_.collective),
          static_cast<std::uint64_t>(call_.type), static_cast<std::uint64_t>(root), offset}) {
      hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return static_cast<std::uint32_t>(hash >> (64 - kSignatureBits));
  }

  /// Sends a token. An entry token carries the offset of the sender's block; an exit token carries
  /// the offset of the receiver's.
  void send(Exchange& exchange, Barrier barrier, int peer) const {
    const int owner = barrier == Barrier::entry ? call_.rank : peer;
    exchange.sends.push_back({token(0), 8, peer, hash_of_call(barrier, offset_of(owner))});
  }
  void receive(Exchange& exchange, Barrier barrier, int peer) const {
    const int owner = barrier == Barrier::entry ? peer : call_.rank;
    exchange.receives.push_back(
        {token(1 + peer), 8, peer, hash_of_call(barrier, offset_of(owner))});
  }
  std::byte* token(int place) const {
    return place_.tokens + std::uint64_t{8} * static_cast<std::uint64_t>(place);
  }

  /// Adds the copy of the block that `peer` has for this rank, or in a scatter the block that the
  /// root has for `peer`.
  void copy(int peer) const {
    const bool is_own = peer == call_.rank;
    const std::uint64_t theirs = bytes_ * static_cast<std::uint64_t>(peer);
    LocalCopy copy{is_own ? call_.input : shared(peer), call_.output + theirs, bytes_};
    if (call_.collective == Collective::all_to_all) {
      copy.from += bytes_ * static_cast<std::uint64_t>(call_.rank);
    } else if (call_.collective == Collective::scatter) {
      copy.from = call_.input + theirs;
      copy.to = is_own ? call_.output : shared(peer);
    }
    if (copy.from == copy.to) return;
    plan_.copies.push_back(copy);
    plan_.copies_own_block = is_own;
  }

  const RankCollective& call_;
  const SharedPlace& place_;
  std::uint64_t bytes_;  // bytes of a block
  std::uint64_t step_;   // distance between the offsets of consecutive ranks
  CopyEnginePlan& plan_;
};

}  // namespace

bool suits_copy_engines(const RankCollective& call) {
  const bool is_known =
      call.collective == Collective::all_gather || call.collective == Collective::all_to_all ||
      call.collective == Collective::gather || call.collective == Collective::scatter;
  return is_known && call.ranks > 1 && block_bytes(call) >= kLeastBlockBytes;
}

SharedBuffer shared_buffer(const RankCollective& call) {
  const std::uint64_t block = block_bytes(call);
  const std::uint64_t all = block * static_cast<std::uint64_t>(call.ranks);
  const bool is_scatter = call.collective == Collective::scatter;
  if (shares_all_blocks(call)) return {is_scatter ? call.input : call.output, all};
  if (is_scatter) return {call.output, block};
  return {call.input, call.collective == Collective::all_to_all ? all : block};
}

void plan_copy_engines(const RankCollective& call, const SharedPlace& place, CopyEnginePlan& plan) {
  EnginePlanner(call, place, plan).make();
}

}  // namespace oriel::kernels
