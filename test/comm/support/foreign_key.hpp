// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/support/network_ranks.hpp"

namespace oriel::test {

/// Rank 0 writes to rank 1 with the key of another communicator, xored with `change`, which
/// bypasses the checks of the device headers. The NIC refuses the write. The error names the two
/// ranks, the refused key, and the opcode and syndrome in hex (3.23).
inline void write_by_changed_key(TestRanks& test_ranks, std::uint32_t change) {
  namespace dq = device::queue;
  constexpr device::Thread kSelf;
  Rank rank(test_ranks, 4096, kWorld);
  Rank other(test_ranks, 4096, kWorld);
  rank.sync("the first barrier");
  // Has the barrier's signals acknowledged: rank 1's queue fails with rank 0's, and would name
  // itself.
  require(device::world_flush(kSelf, rank.view()) == device::WorldOutcome::done, "the flush");
  test_ranks.barrier();
  if (test_ranks.first() == 0) {
    const auto& queue = rank.view().network->queues[1];
    dq::Region foreign = other.window.view().network->peers[1];
    foreign.keys[0] ^= change;
    const dq::Transfer strange{rank.window.view().network->local, 0, foreign, 0, 8};
    const auto posted = dq::put(kSelf, queue, strange, rank.view().wait);
    require(posted.outcome == dq::QueueOutcome::done, "posting");
    const device::detail::Driving driving(rank.view().network);
    const auto outcome =
        dq::wait_complete<device::WorldMemory>(queue, posted.end, rank.view().wait);
    require(outcome == dq::QueueOutcome::failed || outcome == dq::QueueOutcome::aborted, "the put");
    const auto error = error_of(rank.comm);
    require(error && error->origin_rank() == 0, error ? error->to_string() : "no error");
    require_words(error->to_string(), {"rank 0 to rank 1", "refused the key", "0x13", "0x08"});
    must_fail(rank.comm.device_comm(), ErrorCode::remote, {"rank 0 to rank 1"});
  } else {
    const auto error = error_of(rank.comm);
    require(error && error->origin_rank() == 0, error ? error->to_string() : "no error");
  }
  require(!other.comm.async_error(), "the other communicator goes on");
  require(*other.at(0) == 0, "its window");
  other.sync("its barrier");
}

inline void write_by_foreign_key(TestRanks& test_ranks) {
  write_by_changed_key(test_ranks, 0);
}

}  // namespace oriel::test
