// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/queue_failure.hpp"

#include <chrono>

#include <fmt/format.h>

#include "oriel/device/group.hpp"
#include "oriel/device/network.hpp"
#include "oriel/device/wait.hpp"

#include "net/queue/reserve_if_empty.hpp"
#include "net/queue/syndrome.hpp"

namespace oriel::comm {

const char* describe_syndrome(std::uint32_t syndrome) {
  switch (static_cast<net::Syndrome>(syndrome)) {
    case net::Syndrome::local_length:
      return "a WQE of an invalid length";
    case net::Syndrome::local_operation:
      return "a malformed WQE";
    case net::Syndrome::local_protection:
      return "the key or the range of this rank's own memory was refused";
    case net::Syndrome::flushed:
      return "the queue had failed before";
    case net::Syndrome::remote_invalid:
      return "the peer cannot do what was asked";
    case net::Syndrome::remote_access:
      return "the peer refused the key or the range";
    case net::Syndrome::remote_operation:
      return "the peer failed to do it";
    case net::Syndrome::transport_retry:
      return "the peer did not answer";
    case net::Syndrome::receiver_retry:
      return "the peer had posted no receive";
    default:
      return "unknown";
  }
}

const char* describe_complaint(std::uint8_t complaint) {
  switch (static_cast<net::Complaint>(complaint)) {
    case net::Complaint::none:
      return "none";
    case net::Complaint::wrong_index:
      return "another index in the WQE";
    case net::Complaint::wrong_queue:
      return "another queue in the WQE";
    case net::Complaint::wrong_size:
      return "a size that the operation does not have";
    case net::Complaint::not_rung:
      return "a WQE longer than the doorbell announced";
    case net::Complaint::wrong_opcode:
      return "an operation that the NIC does not have";
    case net::Complaint::wrong_modifier:
      return "an invalid modifier of the opcode";
    case net::Complaint::wrong_flags:
      return "flags that do not exist";
    case net::Complaint::reserved_bits:
      return "reserved bits that are not 0";
    case net::Complaint::inline_length:
      return "inline bytes that do not match the WQE's size";
    case net::Complaint::data_length:
      return "a length that is wrong for the operation";
    case net::Complaint::record_behind:
      return "a doorbell rung before its record was written";
    case net::Complaint::wrong_doorbell:
      return "a doorbell that announces more than the ring holds";
    case net::Complaint::no_copies:
      return "a GPU that copies nothing";
    case net::Complaint::deregistered:
      return "a key that was deregistered";
  }
  return "unknown";
}

const char* name_of_operation(std::uint8_t opcode) {
  switch (static_cast<device::queue::Opcode>(opcode)) {
    case device::queue::Opcode::nop:
      return "no operation";
    case device::queue::Opcode::write:
      return "write";
    case device::queue::Opcode::write_immediate:
      return "write with immediate";
    case device::queue::Opcode::read:
      return "read";
    case device::queue::Opcode::compare_swap:
      return "compare-and-swap";
    case device::queue::Opcode::fetch_add:
      return "fetch-and-add";
    case device::queue::Opcode::masked_compare_swap:
      return "masked compare-and-swap";
    case device::queue::Opcode::masked_fetch_add:
      return "masked fetch-and-add";
    case device::queue::Opcode::dump:
      return "dump";
  }
  return "unknown";
}

bool is_timeout(const device::queue::QueueError& error) {
  return static_cast<net::Syndrome>(error.syndrome) == net::Syndrome::transport_retry;
}

bool is_of_peer(std::uint32_t syndrome) {
  const auto what = static_cast<net::Syndrome>(syndrome);
  return what == net::Syndrome::transport_retry || what == net::Syndrome::remote_operation ||
         what == net::Syndrome::receiver_retry;
}

bool may_be_of_leaving(std::uint32_t syndrome) {
  return static_cast<net::Syndrome>(syndrome) == net::Syndrome::remote_access;
}

Error to_error(const FailedQueue& failed) {
  const std::string queue =
      failed.peer_has_left
          ? fmt::format("rank {0} has left the communicator, and the queue from rank {1} to it",
                        failed.peer, failed.rank)
          : fmt::format("the queue from rank {} to rank {}", failed.rank, failed.peer);
  const std::string what =
      failed.is_probe ? "asked whether it is there"
                      : fmt::format("operation {:#04x}: {}, WQE {}", failed.error.opcode,
                                    name_of_operation(failed.error.opcode), failed.error.index);
  return Error(ErrorCode::remote,
               fmt::format("{} has failed: {} (syndrome {:#04x}, {}{}){}", queue, failed.cause,
                           failed.error.syndrome, what, failed.where, failed.more))
      .with_origin(failed.origin);
}

bool LeavingDoubt::is_over(bool has_left, TimePoint now) {
  const std::lock_guard lock(mutex_);
  if (!since_.has_value()) since_ = now;
  return has_left || now - *since_ >= kMost;
}

void LeavingDoubt::end() {
  const std::lock_guard lock(mutex_);
  since_.reset();
}

bool wait_all_unless(const device::queue::QueueView& queue, const device::WaitControl& control,
                     const std::function<bool()>& is_over) {
  using Memory = device::WorldMemory;
  namespace dq = device::queue;
  const std::uint64_t end = dq::detail::load_index<Memory>(&queue.indexes->reserved);
  const auto is_complete = [&] {
    return dq::detail::load_index<Memory>(&queue.indexes->completed) >= end;
  };
  bool is_good = true;
  const auto is_at_end = [&] {
    if (is_complete() || is_over()) return true;
    is_good = !dq::detail::is_broken<Memory>(queue) && dq::detail::poll_in_turn<Memory>(queue);
    return !is_good;
  };
  const auto waited = device::wait_until<Memory>(is_at_end, control, {queue.peer, end});
  return is_complete() || (waited == device::WaitOutcome::ready && is_good);
}

bool QueueProbes::are_due(TimePoint now, Duration interval) {
  const std::lock_guard lock(mutex_);
  if (now - last_ < interval) return false;
  last_ = now;
  return true;
}

void QueueProbes::post(const device::queue::QueueView& queue, const std::uint32_t* abort) {
  namespace dq = device::queue;
  device::WaitControl control;
  control.abort = abort;
  if (!dq::detail::poll_in_turn<device::Memory>(queue)) return;
  const std::lock_guard lock(mutex_);
  // Posts only into an empty queue: pending WQEs detect a failure as well. A write of 0 bytes needs
  // no key.
  dq::Reservation place;
  if (!net::reserve_if_empty(queue, place)) return;
  posted_[queue.peer] = place.base;
  const device::Thread self;
  dq::write_wqe(queue, place, 0,
                dq::inline_write_wqe({queue.number, place.base}, dq::kSignalled, {},
                                     dq::InlineBytes(nullptr, 0)));
  static_cast<void>(dq::publish(self, queue, place));
}

bool QueueProbes::is_of_probe(const device::queue::QueueView& queue,
                              const device::queue::QueueError& error) const {
  const std::lock_guard lock(mutex_);
  const auto posted = posted_.find(queue.peer);
  if (posted == posted_.end() || static_cast<std::uint16_t>(posted->second) != error.index) {
    return false;
  }
  const std::uint64_t* const reserved = &queue.indexes->reserved;
  return device::queue::detail::load_index<device::Memory>(reserved) == posted->second + 1;
}

}  // namespace oriel::comm
