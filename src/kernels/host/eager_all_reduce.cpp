// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/eager_all_reduce.hpp"

#include <algorithm>
#include <array>

#include "kernels/algorithms/eager.hpp"
#include "kernels/host/data_ops_host.hpp"

namespace oriel::kernels {
namespace {

/// A piece of the message.
struct Block {
  std::uint64_t begin = 0;  ///< in bytes
  std::uint64_t line = 0;   ///< first line of the block among the source's lines
  std::uint64_t bytes = 0;
};

class EagerAllReduce {
 public:
  explicit EagerAllReduce(const AllReduceArguments& arguments)
      : arguments_(arguments),
        ops_(arguments),
        exchange_(arguments),
        element_bytes_(HostDataOps::element_bytes(arguments)),
        bytes_(arguments.count * element_bytes_) {}

  bool run() const {
    for_each_peer([&](int rank) { send_input(rank); });
    exchange_.publish();
    if (!reduce()) return false;
    exchange_.end();
    return true;
  }

 private:
  /// Bytes of the staging buffer on the stack, for all other ranks' parts of a block.
  static constexpr std::size_t kStageBytes = 8192;
  static_assert(kStageBytes / host::kMaxLoopArrays >= kEagerLineBytes);

  template <class Action>
  void for_each_peer(const Action& action) const {
    for (int distance = 1; distance < arguments_.ranks; ++distance) {
      const int rank = arguments_.rank + distance;
      action(rank < arguments_.ranks ? rank : rank - arguments_.ranks);
    }
  }

  /// Calls action(block) for each piece of the message of at most `lines` lines. Stops and returns
  /// false if an action returns false.
  template <class Action>
  bool for_each_block(std::size_t lines, const Action& action) const {
    const std::uint64_t most = lines * kEagerPayloadBytes;
    for (std::uint64_t done = 0; done < bytes_; done += most) {
      if (!action(Block{done, done / kEagerPayloadBytes, std::min(most, bytes_ - done)})) {
        return false;
      }
    }
    return true;
  }

  void send_input(int rank) const {
    if (!arguments_.operation.scaled) {
      exchange_.send(rank, 0, arguments_.input, bytes_);
      return;
    }
    alignas(64) std::byte scaled[kStageBytes];
    for_each_block(kStageBytes / kEagerPayloadBytes, [&](const Block& block) {
      ops_.send(scaled, block.begin / element_bytes_, block.bytes / element_bytes_);
      exchange_.send(rank, block.line, scaled, block.bytes);
      return true;
    });
  }

  /// Reduces all ranks' inputs into the output. Returns false if the wait for an input was given
  /// up.
  bool reduce() const {
    alignas(64) std::byte staged[kStageBytes];
    const auto others = static_cast<std::size_t>(arguments_.ranks - 1);
    const std::size_t stride = kStageBytes / others / kEagerLineBytes * kEagerLineBytes;
    return for_each_block(stride / kEagerPayloadBytes, [&](const Block& block) {
      std::array<const std::byte*, host::kMaxLoopArrays> sources;
      std::byte* next = staged;
      for (int rank = 0; rank < arguments_.ranks; ++rank) {
        const auto place = static_cast<std::size_t>(rank);
        if (rank == arguments_.rank) {
          sources[place] = arguments_.input + block.begin;
          continue;
        }
        if (!exchange_.receive(rank, block.line, next, block.bytes)) return false;
        sources[place] = next;
        next += stride;
      }
      if (arguments_.keeps_result()) {
        ops_.reduce_into(arguments_.output + block.begin, sources.data(),
                         block.bytes / element_bytes_);
      }
      return true;
    });
  }

  const AllReduceArguments& arguments_;
  HostDataOps ops_;
  EagerExchange exchange_;
  std::uint64_t element_bytes_;
  std::uint64_t bytes_;
};

}  // namespace

bool eager_on_host(const AllReduceArguments& arguments) {
  return EagerAllReduce(arguments).run();
}

}  // namespace oriel::kernels
