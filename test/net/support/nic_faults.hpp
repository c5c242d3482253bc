// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/deadline.hpp"
#include "net/queue/syndrome.hpp"

namespace oriel::net {
class NicCore;
class NicSoft;
}  // namespace oriel::net

namespace oriel::net::test {

/// Selects requests of a NIC by their queue (0: every queue) and by number. `nth` counts requests
/// that the queue has sent since the faults were set, from 0. Probes, which use no WQE, do not
/// count.
struct FaultPlace {
  static constexpr std::uint64_t kEvery = ~std::uint64_t{0};
  std::uint32_t queue = 0;
  std::uint64_t nth = kEvery;
  bool covers(std::uint32_t in_queue, std::uint64_t at) const {
    return (queue == 0 || queue == in_queue) && (nth == kEvery || nth == at);
  }
};

/// Faults in the messages of a software NIC. Deterministic: the same faults and seed with the same
/// work, clock readings and calls of progress() give the same run.
struct NicFaults {
  /// Delays a request by `duration` from its first attempt to be sent.
  struct Delay {
    FaultPlace place;
    Duration duration{};
    Duration random{};  ///< up to this much more
  };
  /// Answers a request with an error, once all earlier requests have been answered. Later requests
  /// of the queue are lost.
  struct Fail {
    FaultPlace place;
    Syndrome syndrome = Syndrome::none;
    bool after_delivery = false;  ///< the operation is executed all the same
  };
  /// Loses answers of this NIC's queue, counted from 1 since the faults were set.
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
  Duration response_delay{};  ///< delays responses to reads and atomics, and all behind them
  bool skip_turns = false;    ///< half of the attempts to send a request find no room
};

/// Sets the faults of all wires that the NIC has now. In a program that links
/// oriel_test_nic_faults, each wire added to a NIC is wrapped in a fault wire.
void set_faults(const NicCore& nic, NicFaults faults);
/// Delays the NIC's answers to reads and atomics, without other faults.
void delay_responses(const NicCore& nic, const Clock& clock, Duration delay);

/// Makes the NIC dead and silent until resume_nic(). Its progress() does nothing, whoever calls it,
/// so it executes no WQE, answers nothing, and gives up no peer. Messages stay on the wires. A
/// turn in progress has ended when the call returns. The NIC must have a wire.
void stop_nic(const NicSoft& nic);
void resume_nic(const NicSoft& nic);

/// Counts of the messages that a NIC's wires have carried.
struct NicTraffic {
  std::uint64_t requests = 0;          ///< sent, including retransmissions
  std::uint64_t retransmitted = 0;     ///< retransmitted requests
  std::uint64_t probes = 0;            ///< probes, which use no WQE; without retransmissions
  std::uint64_t payload_bytes = 0;     ///< sent, in requests and answers
  std::uint64_t refused = 0;           ///< requests whose data the peer wants in messages
  std::uint64_t rendezvous_reads = 0;  ///< rendezvous reads started, from a peer's memory
  std::uint64_t read_bytes = 0;        ///< bytes of these reads
  std::uint64_t fabric_messages = 0;   ///< sent over libfabric
};
NicTraffic traffic(const NicCore& nic);
inline std::uint64_t fabric_messages(const NicCore& nic) {
  return traffic(nic).fabric_messages;
}

}  // namespace oriel::net::test
