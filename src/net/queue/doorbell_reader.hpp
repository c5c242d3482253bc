// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "net/queue/syndrome.hpp"

namespace oriel::net {

/// What a doorbell may say beside the doorbell record.
enum class DoorbellMode : std::uint8_t {
  strict,  ///< up to its own index, which the record has reached before
  alone,   ///< up to its own index; producers do not write the record
};

/// Watches a doorbell and the record beside it, both in memory that producers write: 8 bytes
/// {be32(index << 8), be32(queue << 8)}, and two words be32(index) of which the first is for
/// receives and the second for sends.
///
/// A word in memory shows its last value only: of several rings between two looks the last one
/// counts, and ringing twice with the same index is ringing once.
class DoorbellReader {
 public:
  struct Look {
    bool rung = false;  ///< `end` has moved
    std::uint64_t end = 0;
    Complaint complaint = Complaint::none;
  };

  DoorbellReader() = default;
  DoorbellReader(const std::uint64_t* doorbell, const std::uint32_t* record, std::uint32_t queue,
                 std::uint32_t depth, DoorbellMode mode)
      : doorbell_(doorbell), record_(record), queue_(queue), depth_(depth), mode_(mode) {}

  /// Whether the word has changed since the last look, which takes note of it.
  bool poll();
  /// What the ring that poll() saw means for a queue that has been told of everything before `end`
  /// and has completed everything before `completed`; indexes count blocks without end.
  Look look(std::uint64_t end, std::uint64_t completed);
  /// Takes the word for a new one at the next look, unless nobody has ever rung. That look goes by
  /// the record, so that a ring that was lost is made up for.
  void forget() {
    seen_ = 0;
    goes_by_record_ = true;
  }
  /// Receives posted so far, modulo 65536.
  std::uint16_t receives() const;
  /// Whether producers have told of more than everything before `end`.
  bool tells_of_more_than(std::uint64_t end) const;

 private:
  /// Blocks that the record tells of, modulo 65536.
  std::uint16_t sends() const;

  const std::uint64_t* doorbell_ = nullptr;
  const std::uint32_t* record_ = nullptr;
  std::uint32_t queue_ = 0;
  std::uint32_t depth_ = 0;
  DoorbellMode mode_ = DoorbellMode::strict;
  std::uint64_t seen_ = 0;
  bool goes_by_record_ = false;
};

/// What everything ends with that producers have told of, modulo 65536; of a queue in which they
/// have told of nothing yet, `end`.
std::uint16_t told_end(const std::uint64_t* doorbell, const std::uint32_t* record,
                       DoorbellMode mode, std::uint64_t end);

}  // namespace oriel::net
