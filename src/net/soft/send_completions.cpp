// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/send_completions.hpp"

#include <atomic>

#include "net/queue/queue_records.hpp"

namespace oriel::net {

SendCompletions::SendCompletions(const QueueSetup& setup, std::uint32_t name)
    : setup_(setup), name_(name), completions_(setup.memory.completions, 1) {}

void SendCompletions::write(const WorkRequest& work, TimePoint now) {
  completions_.write({.opcode = work.opcode,
                      .queue = name_,
                      .index = static_cast<std::uint16_t>(work.index),
                      .bytes = static_cast<std::uint32_t>(work.bytes),
                      .time = static_cast<std::uint64_t>(now.time_since_epoch().count())});
}

void SendCompletions::write_error(const WorkRequest& work, Syndrome syndrome, Complaint complaint) {
  const CompletionRecord record{.kind = CompletionRecord::Kind::request_error,
                                .opcode = work.opcode,
                                .queue = name_,
                                .index = static_cast<std::uint16_t>(work.index),
                                .syndrome = syndrome,
                                .complaint = complaint};
  if (setup_.records != nullptr) {  // another NIC continues
    if (!setup_.records->error.has_value()) setup_.records->error = record;
    return;
  }
  if (!has_error_word_) {
    store_first_error(record);
    is_of_probe_ = record.opcode == kProbeOpcode && record.syndrome == Syndrome::transport_retry;
  } else if (is_of_probe_ && record.opcode != kProbeOpcode) {
    // A missing response to a probe may be no failure. A missing response to a WQE is one.
    CompletionRecord first = record;
    first.syndrome = Syndrome::transport_retry;
    store_first_error(first);
    is_of_probe_ = false;
  }
  completions_.write(record);
}

void SendCompletions::store_first_error(const CompletionRecord& record) {
  has_error_word_ = true;
  if (setup_.memory.first_error == nullptr) return;
  std::atomic_ref<std::uint64_t>(*setup_.memory.first_error)
      .store(first_error_word(record), std::memory_order_release);
}

}  // namespace oriel::net
