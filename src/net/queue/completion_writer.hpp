// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "net/queue/syndrome.hpp"

namespace oriel::net {

/// Contents of a completion.
struct CompletionRecord {
  enum class Kind : std::uint8_t {
    request = 0,
    received_immediate = 1,
    request_error = 13,
    response_error = 14,
  };
  Kind kind = Kind::request;
  std::uint8_t opcode = 0;  ///< opcode of the WQE; 0 for a receive
  std::uint32_t queue = 0;
  std::uint16_t index = 0;
  std::uint32_t bytes = 0;
  std::uint32_t immediate = 0;
  std::uint64_t time = 0;              ///< successful completions only
  Syndrome syndrome = Syndrome::none;  ///< failed completions only
  Complaint complaint = Complaint::none;
};

/// Writes CQEs in the format of mlx5, from its description. A queue of one CQE is collapsed: each
/// completion overwrites the CQE. A longer queue is filled in turn, and the owner bit changes with
/// each round. CQEs that nobody has read are overwritten too.
class CompletionWriter {
 public:
  static constexpr std::size_t kElementBytes = 64;

  CompletionWriter() = default;
  /// `elements` are 64-byte aligned, a power of two in number, and filled with 0xff by their owner.
  /// `written` counts the CQEs that were written before.
  CompletionWriter(std::byte* elements, std::uint32_t count, std::uint64_t written = 0)
      : elements_(elements), count_(count), written_(written) {}

  /// Writes one CQE: first its leading words with relaxed stores, then its last 8 bytes with a
  /// release store. Does nothing if the queue has no CQEs.
  void write(const CompletionRecord& record);

 private:
  std::byte* elements_ = nullptr;
  std::uint32_t count_ = 0;
  std::uint64_t written_ = 0;
};

/// Encodes a queue's first error in one word, which device code reads. Bit 63 is set. The syndrome
/// is in bits 39..32, the vendor's syndrome in 31..24, the opcode in 23..16, the index in 15..0.
std::uint64_t first_error_word(const CompletionRecord& record);

}  // namespace oriel::net
