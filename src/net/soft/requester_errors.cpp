// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "net/queue/queue_records.hpp"
#include "net/soft/requester.hpp"

// How the sending half of a queue ends.
namespace oriel::net {
namespace {

constexpr std::uint32_t kFlushMost = 256;  // completions of one call

}  // namespace

void Requester::store_first_error(const CompletionRecord& record) const {
  if (setup_.memory.first_error == nullptr) return;
  std::atomic_ref<std::uint64_t>(*setup_.memory.first_error)
      .store(first_error_word(record), std::memory_order_release);
}

void Requester::write_error(const CompletionRecord& record) {
  if (setup_.records != nullptr) {
    if (!setup_.records->error.has_value()) setup_.records->error = record;
    return fail(Syndrome::flushed, Complaint::none);
  }
  if (!has_error_word_) {
    store_first_error(record);
    is_of_probe_ = record.opcode == kProbeOpcode && record.syndrome == Syndrome::transport_retry;
  } else if (is_of_probe_ && record.opcode != kProbeOpcode) {
    // A probe that has no answer may be no failure. An entry that has none is.
    CompletionRecord first = record;
    first.syndrome = Syndrome::transport_retry;
    store_first_error(first);
    is_of_probe_ = false;
  }
  has_error_word_ = true;
  completions_.write(record);
  failed_ = true;
  forget_sent();
  active_.clear();
  landings_.clear();
}

void Requester::fail(Syndrome syndrome, Complaint complaint) {
  if (failed_) return;
  if (syndrome == Syndrome::flushed) {  // each entry says so itself
    failed_ = true;
    forget_sent();
    active_.clear();
    landings_.clear();
    return;
  }
  const std::uint64_t at = completed_;
  std::uint8_t opcode = 0;
  if (at < end_) {
    const WorkRequest work = reader_.read(at, end_).work;
    completed_ += work.blocks;
    opcode = work.opcode;
  }
  write_error({.kind = CompletionRecord::Kind::request_error,
               .opcode = opcode,
               .queue = name_,
               .index = static_cast<std::uint16_t>(at),
               .syndrome = syndrome,
               .complaint = complaint});
}

bool Requester::flush() {
  if (setup_.records != nullptr) return false;  // they are for the next NIC
  const bool any = completed_ < end_;
  for (std::uint32_t i = 0; i < kFlushMost && completed_ < end_; ++i) {
    const WorkRequest work = reader_.read(completed_, end_).work;
    write_error({.kind = CompletionRecord::Kind::request_error,
                 .opcode = work.opcode,
                 .queue = name_,
                 .index = static_cast<std::uint16_t>(completed_),
                 .syndrome = Syndrome::flushed});
    completed_ += work.blocks;
    ++nic_.counters.flushed;
  }
  return any;
}

}  // namespace oriel::net
