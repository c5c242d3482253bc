// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/queue/completion_writer.hpp"

#include <array>
#include <atomic>
#include <cstring>

#include "net/queue/byte_order.hpp"

namespace oriel::net {

void CompletionWriter::write(const CompletionRecord& record) {
  if (count_ == 0) return;
  std::array<std::byte, kElementBytes> image{};
  const bool failed = record.kind == CompletionRecord::Kind::request_error ||
                      record.kind == CompletionRecord::Kind::response_error;
  if (failed) {
    image[54] = static_cast<std::byte>(record.complaint);
    image[55] = static_cast<std::byte>(record.syndrome);
  } else {
    store_big32(&image[36], record.immediate);
    store_big32(&image[44], record.bytes);
    store_big64(&image[48], record.time);
  }
  store_big32(&image[56], static_cast<std::uint32_t>(record.opcode) << 24 | record.queue);
  store_big16(&image[60], record.index);
  const bool odd_round = count_ > 1 && (written_ & count_) != 0;
  image[63] = static_cast<std::byte>(static_cast<unsigned>(record.kind) << 4 | (odd_round ? 1 : 0));

  std::byte* element = elements_ + (written_ & (count_ - 1)) * kElementBytes;
  ++written_;
  for (std::size_t at = 0; at < kElementBytes; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, &image[at], sizeof word);
    const bool last = at + 8 == kElementBytes;
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(element + at))
        .store(word, last ? std::memory_order_release : std::memory_order_relaxed);
  }
}

std::uint64_t first_error_word(const CompletionRecord& record) {
  return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(record.syndrome) << 32 |
         static_cast<std::uint64_t>(record.complaint) << 24 |
         static_cast<std::uint64_t>(record.opcode) << 16 | record.index;
}

}  // namespace oriel::net
