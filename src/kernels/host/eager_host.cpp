// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/eager_host.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/algorithms/eager.hpp"
#include "kernels/host/data_ops_host.hpp"
#include "kernels/plan/collective.hpp"

namespace oriel::kernels {
namespace {

/// Calls action(rank) for every other rank, from the right-hand neighbour on.
template <class Action>
void for_each_peer(const AllReduceArguments& arguments, const Action& action) {
  for (int distance = 1; distance < arguments.ranks; ++distance) {
    const int rank = arguments.rank + distance;
    action(rank < arguments.ranks ? rank : rank - arguments.ranks);
  }
}

/// A piece of the message.
struct Piece {
  std::uint64_t begin = 0;  ///< in bytes
  std::uint64_t line = 0;   ///< first line of the piece among the source's lines
  std::uint64_t bytes = 0;
};

/// An all-reduce, reduce or reduce-scatter.
class EagerReduction {
 public:
  explicit EagerReduction(const AllReduceArguments& arguments)
      : arguments_(arguments),
        ops_(arguments),
        exchange_(arguments),
        element_bytes_(HostDataOps::element_bytes(arguments)),
        bytes_((arguments.block != 0 ? arguments.block : arguments.count) * element_bytes_) {}

  bool run() const {
    for_each_peer(arguments_, [&](int rank) { send_input(rank); });
    exchange_.publish();
    if (!reduce()) return false;
    exchange_.end();
    return true;
  }

 private:
  /// Bytes of the staging buffer on the stack, for all other ranks' parts of a piece.
  static constexpr std::size_t kStageBytes = 8192;
  static_assert(kStageBytes / host::kMaxLoopArrays >= kEagerLineBytes);

  /// Returns where the elements that `rank` reduces begin in this rank's input.
  std::uint64_t first_of(int rank) const {
    return static_cast<std::uint64_t>(rank) * arguments_.block;
  }

  /// Calls action(piece) for each piece of the message of at most `lines` lines. Stops and returns
  /// false if an action returns false.
  template <class Action>
  bool for_each_piece(std::size_t lines, const Action& action) const {
    const std::uint64_t most = lines * kEagerPayloadBytes;
    for (std::uint64_t done = 0; done < bytes_; done += most) {
      if (!action(Piece{done, done / kEagerPayloadBytes, std::min(most, bytes_ - done)})) {
        return false;
      }
    }
    return true;
  }

  void send_input(int rank) const {
    const std::uint64_t first = first_of(rank);
    if (!arguments_.operation.scaled) {
      exchange_.send(rank, 0, arguments_.input + first * element_bytes_, bytes_);
      return;
    }
    alignas(64) std::byte scaled[kStageBytes];
    for_each_piece(kStageBytes / kEagerPayloadBytes, [&](const Piece& piece) {
      ops_.send(scaled, first + piece.begin / element_bytes_, piece.bytes / element_bytes_);
      exchange_.send(rank, piece.line, scaled, piece.bytes);
      return true;
    });
  }

  /// Reduces all ranks' inputs into the output. Returns false if the wait for an input was given
  /// up.
  bool reduce() const {
    alignas(64) std::byte staged[kStageBytes];
    const auto others = static_cast<std::size_t>(arguments_.ranks - 1);
    const std::size_t stride = kStageBytes / others / kEagerLineBytes * kEagerLineBytes;
    const std::byte* const own = arguments_.input + first_of(arguments_.rank) * element_bytes_;
    return for_each_piece(stride / kEagerPayloadBytes, [&](const Piece& piece) {
      std::array<const std::byte*, host::kMaxLoopArrays> sources;
      std::byte* next = staged;
      for (int rank = 0; rank < arguments_.ranks; ++rank) {
        const auto place = static_cast<std::size_t>(rank);
        if (rank == arguments_.rank) {
          sources[place] = own + piece.begin;
          continue;
        }
        if (!exchange_.receive(rank, piece.line, next, piece.bytes)) return false;
        sources[place] = next;
        next += stride;
      }
      if (arguments_.keeps_result()) {
        ops_.reduce_into(arguments_.output + piece.begin, sources.data(),
                         piece.bytes / element_bytes_);
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

/// Runs an all-gather or all-to-all. In place is allowed: all blocks are sent before the
/// output is written.
bool exchange_blocks(const AllReduceArguments& arguments) {
  const bool gathers = arguments.collective == Collective::all_gather;
  const std::uint64_t bytes = arguments.share * size_of(arguments.type);
  const EagerExchange exchange(arguments);
  const auto input_for = [&](int rank) {
    return arguments.input + (gathers ? 0 : static_cast<std::uint64_t>(rank) * bytes);
  };
  const auto output_from = [&](int rank) {
    return arguments.output + static_cast<std::uint64_t>(rank) * bytes;
  };
  for_each_peer(arguments, [&](int rank) { exchange.send(rank, 0, input_for(rank), bytes); });
  exchange.publish();
  const std::byte* const own = input_for(arguments.rank);
  std::byte* const place = output_from(arguments.rank);
  std::memmove(place, own, bytes);
  bool alive = true;
  for_each_peer(arguments, [&](int rank) {
    alive = alive && exchange.receive(rank, 0, output_from(rank), bytes);
  });
  if (alive) exchange.end();
  return alive;
}

}  // namespace

bool eager_on_host(const AllReduceArguments& arguments) {
  if (reduces(arguments.collective)) return EagerReduction(arguments).run();
  return exchange_blocks(arguments);
}

}  // namespace oriel::kernels
