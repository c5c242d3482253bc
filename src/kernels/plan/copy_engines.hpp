// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/plan/exchange.hpp"

/// Plans collectives whose data copy engines move, so that multiprocessors stay free. Ranks are
/// GPUs of one LSA team, and rank r of the communicator has slot r. All functions here are pure.
///
/// A call is a barrier, copies, and a barrier. The barriers are exchanges of tokens of 8 bytes. In
/// an all-gather, all-to-all and gather, receivers pull blocks: entry tokens mean that inputs are
/// ready. In a scatter the root pushes, because the others do not know the address of its input.
/// Its entry tokens mean that outputs may be written. Exit tokens mean that the copies are
/// complete.
///
/// Copies are enqueued before the tokens are compared. So the copies also run if ranks are in
/// different calls or the communicator is aborted. They write into the rank's own output, or in a
/// scatter into the peers' windows.
namespace oriel::kernels {

/// Returns whether a call suits copy engines, from facts that all ranks know.
bool suits_copy_engines(const RankCollective& call);

/// Buffer that has the same offset in the slot of every rank: windows registered with
/// NCCL_WIN_COLL_SYMMETRIC have equal offsets on all ranks.
struct SharedBuffer {
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

/// Returns the output of a scatter, else the input. In place, returns the buffer of all blocks: of
/// an all-gather, and at the root of a gather or scatter. `call` must suit copy engines.
SharedBuffer shared_buffer(const RankCollective& call);

/// Addresses that a call needs.
struct SharedPlace {
  std::byte* flat_base = nullptr;  ///< address of slot 0, offset 0 of the team's flat space
  std::uint32_t stride_4g = 0;     ///< distance between consecutive slots, in units of 4 GiB
  std::uint64_t offset = 0;        ///< offset of the shared buffer in every slot
  std::byte* tokens = nullptr;     ///< token_bytes() of this rank's memory
};

/// Returns the bytes of a rank's tokens: one to send, and one from each rank.
constexpr std::uint64_t token_bytes(int ranks) {
  return 8 * (static_cast<std::uint64_t>(ranks) + 1);
}

/// Steps of one rank in a call, in order.
struct CopyEnginePlan {
  Exchange entry;
  std::vector<LocalCopy> copies;  ///< ranks to the right, nearest first; the own block last
  bool copies_own_block = false;  ///< the last copy is of the own block: not in place
  Exchange exit;                  ///< may be empty
};

/// Sets `plan`, and reuses its memory. A token carries a hash of the call and of the offset of the
/// block that a copy shares. So ranks that differ in the call or the offset get an error.
void plan_copy_engines(const RankCollective& call, const SharedPlace& place, CopyEnginePlan& plan);

}  // namespace oriel::kernels
