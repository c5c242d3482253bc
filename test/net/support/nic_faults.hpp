// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/deadline.hpp"
#include "net/queue/syndrome.hpp"

namespace oriel::net {
class NicCore;
}

namespace oriel::net::test {

/// Which requests of a NIC a fault is for: the number of its queue (0: every queue), and how many
/// others the queue has sent since the faults were set. Probes that stand in no ring do not count.
struct FaultPlace {
  static constexpr std::uint64_t kEvery = ~std::uint64_t{0};
  std::uint32_t queue = 0;
  std::uint64_t nth = kEvery;
  bool covers(std::uint32_t in_queue, std::uint64_t at) const {
    return (queue == 0 || queue == in_queue) && (nth == kEvery || nth == at);
  }
};

/// What happens to the messages of a software NIC. A value: the same faults and seed with the same
/// work and calls of progress() give the same run.
struct NicFaults {
  /// A request goes out only so long after it could have gone.
  struct Delay {
    FaultPlace place;
    Duration duration{};
    Duration random{};  ///< up to this much more
  };
  /// A request is answered with an error, once those before it have been answered. Nothing that
  /// the queue sends after it arrives.
  struct Fail {
    FaultPlace place;
    Syndrome syndrome = Syndrome::none;
    bool after_delivery = false;  ///< what it asks for is done all the same
  };
  /// Answers of this NIC's queue that are lost, counted from 1 since the faults were set.
  struct LoseResponse {
    std::uint32_t queue = 0;
    std::uint64_t nth = 1;
    std::uint64_t count = 1;
  };

  std::uint64_t seed = 1;
  const Clock* clock = &SteadyClock::instance();
  std::vector<Delay> delays;
  std::vector<Fail> fails;
  std::vector<LoseResponse> lost_responses;
  Duration response_delay{};  ///< of what this NIC answers to reads and atomics, and what follows
  bool skip_turns = false;    ///< half of the tries to send a request find no room
};

/// Sets what the wires do that the NIC has now. Every program that links oriel_test_nic_faults has
/// such wires between each NIC and those that it is given.
void set_faults(const NicCore& nic, NicFaults faults);
/// What the NIC answers to reads and atomics comes so much later, and nothing else is wrong.
void delay_responses(const NicCore& nic, const Clock& clock, Duration delay);

/// What a NIC's wires have carried for it.
struct NicTraffic {
  std::uint64_t requests = 0;         ///< sent, repetitions included
  std::uint64_t repeated = 0;         ///< of these
  std::uint64_t probes = 0;           ///< of these, which stand in no ring; without repetitions
  std::uint64_t payload_bytes = 0;    ///< sent, in requests and answers
  std::uint64_t refused = 0;          ///< requests whose bytes the peer wants in messages
  std::uint64_t fetches = 0;          ///< begun, from a peer's memory
  std::uint64_t fetched_bytes = 0;    ///< of these
  std::uint64_t fabric_messages = 0;  ///< sent over libfabric
};
NicTraffic traffic(const NicCore& nic);
inline std::uint64_t fabric_messages(const NicCore& nic) {
  return traffic(nic).fabric_messages;
}

}  // namespace oriel::net::test
