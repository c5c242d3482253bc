// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "net/queue/syndrome.hpp"

namespace oriel::net {

/// What a completion says.
struct CompletionRecord {
  enum class Kind : std::uint8_t {
    request = 0,
    received_immediate = 1,
    request_error = 13,
    response_error = 14,
  };
  Kind kind = Kind::request;
  std::uint8_t opcode = 0;  ///< of the entry; 0 for what was received
  std::uint32_t queue = 0;
  std::uint16_t index = 0;
  std::uint32_t bytes = 0;
  std::uint32_t immediate = 0;
  std::uint64_t time = 0;              ///< of completions without an error
  Syndrome syndrome = Syndrome::none;  ///< of those with one
  Complaint complaint = Complaint::none;
};

/// Writes elements of a completion queue in the format of mlx5, from its description. One element
/// is a collapsed queue, which each completion overwrites; more are filled in turn, the owner bit
/// telling one round from the next, and what nobody has read is overwritten too.
class CompletionWriter {
 public:
  static constexpr std::size_t kElementBytes = 64;

  CompletionWriter() = default;
  /// `elements` are 64-byte aligned, a power of two in number, and filled with 0xff by their owner.
  /// `written`: how many were written before.
  CompletionWriter(std::byte* elements, std::uint32_t count, std::uint64_t written = 0)
      : elements_(elements), count_(count), written_(written) {}

  /// The last 8 bytes are stored last (release), the others before them as whole words. Nothing
  /// happens if there are no elements.
  void write(const CompletionRecord& record);

 private:
  std::byte* elements_ = nullptr;
  std::uint32_t count_ = 0;
  std::uint64_t written_ = 0;
};

/// A queue's first error in one word, which device code reads: bit 63, syndrome in bits 39..32,
/// vendor's syndrome in 31..24, opcode in 23..16, index in 15..0.
std::uint64_t first_error_word(const CompletionRecord& record);

}  // namespace oriel::net
