// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/deadline.hpp"
#include "net/queue/syndrome.hpp"

namespace oriel::net {

/// Which entries a fault is for: numbers of queues and indexes of first blocks.
struct FaultPlace {
  static constexpr std::uint64_t kEvery = ~std::uint64_t{0};
  std::uint32_t queue = 0;  ///< 0: every queue
  std::uint64_t index = kEvery;
  bool covers(std::uint32_t in_queue, std::uint64_t at) const {
    return (queue == 0 || queue == in_queue) && (index == kEvery || index == at);
  }
};

/// What a software NIC is told to do wrong, or slowly. A value: the same faults and seed with the
/// same work and calls of progress() give the same run.
struct NicFaults {
  /// Begin an entry only so long after it could have begun.
  struct Delay {
    FaultPlace place;
    Duration duration{};
    Duration random{};  ///< up to this much more
  };
  /// Complete an entry with an error. Entries before it are executed, later ones flushed.
  struct Fail {
    FaultPlace place;
    Syndrome syndrome = Syndrome::none;
    bool after_delivery = false;  ///< what it asks for is done all the same
  };
  /// Overlook a ring of a queue's doorbell; counted from 1.
  struct DropDoorbell {
    std::uint32_t queue = 0;
    std::uint64_t nth = 1;
  };
  /// As the peer of a queue: do what a request says and lose the response; counted from 1 in the
  /// responses of this NIC's queue.
  struct LoseResponse {
    std::uint32_t queue = 0;
    std::uint64_t nth = 1;
    std::uint64_t count = 1;
  };
  /// Stop, or die, instead of beginning an entry.
  struct End {
    FaultPlace place;
    bool die = false;
  };

  std::uint64_t seed = 1;
  std::vector<Delay> delays;
  std::vector<Fail> fails;
  std::vector<DropDoorbell> dropped_doorbells;
  std::vector<LoseResponse> lost_responses;
  std::vector<End> ends;
  /// As the peer: so long from a read or atomic to its response.
  Duration response_delay{};
  /// Orders that the standard leaves open.
  bool shuffle_queues = false;     ///< whose turn it is, and skip some turns
  bool shuffle_pieces = false;     ///< of one write or read
  Duration reads_behind_writes{};  ///< as the peer: reads wait so long, later writes do not
  /// Bytes of reads and old values of atomics land so long after their completion, or when a dump
  /// entry is executed, whichever comes first. 0: before it.
  Duration late_reads{};
};

}  // namespace oriel::net
