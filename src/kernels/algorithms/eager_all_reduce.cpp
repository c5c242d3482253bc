// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/algorithms/eager_all_reduce.hpp"

#include <algorithm>
#include <array>

#include "kernels/algorithms/eager.hpp"
#include "kernels/algorithms/mover_host.hpp"

namespace oriel::kernels {
namespace {

/// Bytes of the message, from `begin`.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

class EagerAllReduce {
 public:
  EagerAllReduce(const AllReduceArguments& arguments, int stages)
      : arguments_(arguments),
        mover_(arguments),
        lanes_(arguments, stages),
        element_bytes_(HostMover::element_bytes(arguments)),
        bytes_(arguments.count * element_bytes_) {}

  void one_shot() {
    const Range all{0, bytes_};
    for_each_peer([&](int rank) { send_input(rank, all); });
    lanes_.publish();
    if (reduce(all, [](const Range&) {})) lanes_.end();
  }

  void two_shot() {
    for_each_peer([&](int owner) { send_input(owner, share_of(owner)); });
    lanes_.publish();
    const Range mine = share_of(arguments_.rank);
    const auto send_result = [&](const Range& block) {
      const std::uint64_t line = (block.begin - mine.begin) / kEagerPayloadBytes;
      for_each_peer([&](int rank) {
        lanes_.send(rank, 1, line, arguments_.output + block.begin, block.bytes);
      });
    };
    if (!reduce(mine, send_result)) return;
    lanes_.publish();
    bool alive = true;
    for_each_peer([&](int owner) {
      const Range share = share_of(owner);
      alive = alive && lanes_.receive(owner, 1, 0, arguments_.output + share.begin, share.bytes);
    });
    if (alive) lanes_.end();
  }

 private:
  /// Where messages are staged, on the stack: all other ranks' parts of a block.
  static constexpr std::size_t kStageBytes = 8192;
  static_assert(kStageBytes / host::kMaxLoopArrays >= kEagerLineBytes);

  template <class Action>
  void for_each_peer(const Action& action) const {
    for (int distance = 1; distance < arguments_.ranks; ++distance) {
      const int rank = arguments_.rank + distance;
      action(rank < arguments_.ranks ? rank : rank - arguments_.ranks);
    }
  }

  /// The last shares are short, or empty.
  Range share_of(int rank) const {
    const std::uint64_t share = arguments_.share * kEagerPayloadBytes;
    const std::uint64_t begin = std::min(static_cast<std::uint64_t>(rank) * share, bytes_);
    return {begin, std::min(share, bytes_ - begin)};
  }

  /// Calls action(block) for each piece of `range` with at most `lines` lines, until it is false.
  template <class Action>
  bool for_each_block(const Range& range, std::size_t lines, const Action& action) const {
    const std::uint64_t most = lines * kEagerPayloadBytes;
    for (std::uint64_t done = 0; done < range.bytes; done += most) {
      if (!action(Range{range.begin + done, std::min(most, range.bytes - done)})) return false;
    }
    return true;
  }

  void send_input(int rank, const Range& range) const {
    if (!arguments_.scaled) {
      lanes_.send(rank, 0, 0, arguments_.input + range.begin, range.bytes);
      return;
    }
    alignas(64) std::byte scaled[kStageBytes];
    for_each_block(range, kStageBytes / kEagerPayloadBytes, [&](const Range& block) {
      mover_.send(scaled, block.begin / element_bytes_, block.bytes / element_bytes_);
      lanes_.send(rank, 0, (block.begin - range.begin) / kEagerPayloadBytes, scaled, block.bytes);
      return true;
    });
  }

  /// Reduces `range` of all ranks' inputs into the output; calls finished(block) as the pieces of
  /// it are done. False if the wait for an input was given up.
  template <class Finished>
  bool reduce(const Range& range, const Finished& finished) const {
    alignas(64) std::byte staged[kStageBytes];
    const auto others = static_cast<std::size_t>(arguments_.ranks - 1);
    const std::size_t stride = kStageBytes / others / kEagerLineBytes * kEagerLineBytes;
    return for_each_block(range, stride / kEagerPayloadBytes, [&](const Range& block) {
      const std::uint64_t line = (block.begin - range.begin) / kEagerPayloadBytes;
      std::array<const std::byte*, host::kMaxLoopArrays> sources;
      std::byte* next = staged;
      for (int rank = 0; rank < arguments_.ranks; ++rank) {
        const auto place = static_cast<std::size_t>(rank);
        if (rank == arguments_.rank) {
          sources[place] = arguments_.input + block.begin;
          continue;
        }
        if (!lanes_.receive(rank, 0, line, next, block.bytes)) return false;
        sources[place] = next;
        next += stride;
      }
      mover_.reduce_into(arguments_.output + block.begin, sources.data(),
                         block.bytes / element_bytes_);
      finished(block);
      return true;
    });
  }

  const AllReduceArguments& arguments_;
  HostMover mover_;
  EagerLanes lanes_;
  std::uint64_t element_bytes_;
  std::uint64_t bytes_;
};

}  // namespace

void one_shot_on_host(const AllReduceArguments& arguments) {
  EagerAllReduce(arguments, 1).one_shot();
}

void two_shot_on_host(const AllReduceArguments& arguments) {
  EagerAllReduce(arguments, 2).two_shot();
}

}  // namespace oriel::kernels
