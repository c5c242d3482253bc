// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "net/queue/syndrome.hpp"

namespace oriel::net {

/// Relation of a doorbell to the doorbell record.
enum class DoorbellMode : std::uint8_t {
  strict,  ///< the doorbell's index is valid; the record has reached it before
  alone,   ///< the doorbell's index is valid; producers do not write the record
};

/// Polls a doorbell and its doorbell record, which producers write. The doorbell is 8 bytes
/// {be32(index << 8), be32(queue << 8)}. The record is two words be32(index), the first for
/// receives and the second for sends.
///
/// A word in memory shows only its last value. If a doorbell is rung several times between two
/// polls, only the last ring counts. A second ring with the same index has no effect.
class DoorbellReader {
 public:
  struct Poll {
    bool rung = false;  ///< `end` has moved
    std::uint64_t end = 0;
    Complaint complaint = Complaint::none;
  };

  DoorbellReader() = default;
  DoorbellReader(const std::uint64_t* doorbell, const std::uint32_t* record, std::uint32_t queue,
                 std::uint32_t depth, DoorbellMode mode)
      : doorbell_(doorbell), record_(record), queue_(queue), depth_(depth), mode_(mode) {}

  /// Returns whether the doorbell has changed since the last poll; remembers its value.
  bool poll();
  /// Interprets the ring that poll() saw. Producers have announced everything before `end`, and the
  /// queue has completed everything before `completed`. Indexes count WQEBBs and never wrap.
  Poll poll(std::uint64_t end, std::uint64_t completed);
  /// Has the next poll() take the doorbell for a new ring, unless it was never rung. In mode
  /// `strict` the following poll() uses the record's index, which recovers a lost ring.
  void forget() {
    seen_ = 0;
    goes_by_record_ = true;
  }
  /// Returns the number of receives posted so far, modulo 65536.
  std::uint16_t receives() const;
  /// Returns whether producers have announced more than everything before `end`.
  bool has_more_than(std::uint64_t end) const;

 private:
  /// Returns the number of WQEBBs that the record announces, modulo 65536.
  std::uint16_t sends() const;

  const std::uint64_t* doorbell_ = nullptr;
  const std::uint32_t* record_ = nullptr;
  std::uint32_t queue_ = 0;
  std::uint32_t depth_ = 0;
  DoorbellMode mode_ = DoorbellMode::strict;
  std::uint64_t seen_ = 0;
  bool goes_by_record_ = false;
};

/// Returns the end of everything that producers have announced, modulo 65536. In mode `alone`,
/// returns `end` if the doorbell was never rung.
std::uint16_t published_end(const std::uint64_t* doorbell, const std::uint32_t* record,
                            DoorbellMode mode, std::uint64_t end);

}  // namespace oriel::net
