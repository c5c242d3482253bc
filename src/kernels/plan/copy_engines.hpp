// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/plan/exchange.hpp"

/// Collectives whose bytes copy engines move, so that multiprocessors stay free. Ranks are GPUs of
/// one LSA team, and rank r of the communicator has slot r. All functions here are pure.
///
/// A call is a barrier, copies, and a barrier. The barriers are exchanges of tokens of 8 bytes. In
/// an all-gather, all-to-all and gather, receivers pull blocks: entry tokens say that inputs are
/// ready. In a scatter the root pushes, for the others do not know where its input lies: entry
/// tokens say that outputs may be written. Exit tokens say that the copies have ended.
///
/// Copies are enqueued before the tokens are compared. If ranks turn out to be in different calls,
/// or the communicator is aborted, the copies run all the same. They write into the own output, or
/// in a scatter into the peers' windows.
namespace oriel::kernels {

/// Returns whether copy engines carry out a call where they may: what all ranks know decides.
bool suits_copy_engines(const RankCollective& call);

/// The buffer whose offset in this rank's slot says where other ranks have theirs: windows that
/// were registered with NCCL_WIN_COLL_SYMMETRIC have equal offsets on all ranks.
struct SharedBuffer {
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

/// Returns the output of a scatter, else the input. In place, it is all blocks: of an all-gather,
/// and at the root of a gather or scatter. `call` suits copy engines.
SharedBuffer shared_buffer(const RankCollective& call);

/// Addresses that a call needs.
struct SharedPlace {
  std::byte* flat_base = nullptr;  ///< of the team's addresses: slot 0, offset 0
  std::uint32_t stride_4g = 0;     ///< distance of two slots, in units of 4 GiB
  std::uint64_t offset = 0;        ///< of the shared buffer, in every slot
  std::byte* tokens = nullptr;     ///< token_bytes() of this rank's memory
};

/// Returns the room that the tokens of a rank take: one to send, and one from each rank.
constexpr std::uint64_t token_bytes(int ranks) {
  return 8 * (static_cast<std::uint64_t>(ranks) + 1);
}

/// Steps of one rank in a call, in order.
struct CopyEnginePlan {
  Exchange entry;
  std::vector<LocalCopy> copies;  ///< the nearest rank to the right first, the own block last
  bool copies_own_block = false;  ///< not in place
  Exchange exit;                  ///< may be empty
};

/// Sets `plan`, whose memory is used again. Tokens carry a hash of the call and of the offset at
/// which the one rank has the block that the other copies. So ranks which differ in either get an
/// error.
void plan_copy_engines(const RankCollective& call, const SharedPlace& place, CopyEnginePlan& plan);

}  // namespace oriel::kernels
