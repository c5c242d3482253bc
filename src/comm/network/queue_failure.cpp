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
      return "an entry of a length that cannot be";
    case net::Syndrome::local_operation:
      return "an entry that makes no sense";
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
      return "the peer had no room";
    default:
      return "unknown";
  }
}

bool is_of_peer(std::uint32_t syndrome) {
  const auto what = static_cast<net::Syndrome>(syndrome);
  return what == net::Syndrome::transport_retry || what == net::Syndrome::remote_operation ||
         what == net::Syndrome::receiver_retry;
}

bool may_be_of_leaving(std::uint32_t syndrome) {
  return static_cast<net::Syndrome>(syndrome) == net::Syndrome::remote_access;
}

std::string describe_failure(int rank, int peer, bool peer_has_left, const std::string& how) {
  if (peer_has_left) {
    return fmt::format(
        "rank {} has left the communicator, and the queue from rank {} to it has "
        "failed: {}",
        peer, rank, how);
  }
  return fmt::format("the queue from rank {} to rank {} has failed: {}", rank, peer, how);
}

bool LeavingDoubt::is_over(bool has_left, TimePoint now) {
  if (!since_.has_value()) since_ = now;
  return has_left || now - *since_ >= kMost;
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
    is_good =
        !dq::detail::is_broken<Memory>(queue) &&
        dq::detail::tell_what_is_ready<Memory>(queue, end, control) == dq::QueueOutcome::done &&
        dq::detail::look_in_turn<Memory>(queue);
    return !is_good;
  };
  const auto waited = device::wait_until<Memory>(is_at_end, control, {queue.peer, end});
  return is_complete() || (waited == device::WaitOutcome::ready && is_good);
}

std::optional<std::uint64_t> post_probe(const device::queue::QueueView& queue,
                                        const std::uint32_t* abort) {
  namespace dq = device::queue;
  device::WaitControl control;
  control.abort = abort;
  if (!dq::detail::look_in_turn<device::Memory>(queue)) return std::nullopt;
  // Where there is something else, that will tell. For no bytes no key is needed.
  dq::Reservation place;
  if (!net::reserve_if_empty(queue, place)) return std::nullopt;
  const device::Thread self;
  dq::write_entry(queue, place, 0,
                  dq::inline_write_entry({queue.number, place.base}, dq::kSignalled, {},
                                         dq::InlineBytes(nullptr, 0)));
  static_cast<void>(dq::publish(self, queue, place, control));
  return place.base;
}

bool is_of_lone_probe(const device::queue::QueueView& queue, std::uint64_t probe,
                      const device::queue::QueueError& error) {
  if (static_cast<std::uint16_t>(probe) != error.index) return false;
  const std::uint64_t* const reserved = &queue.indexes->reserved;
  return device::queue::detail::load_index<device::Memory>(reserved) == probe + 1;
}

}  // namespace oriel::comm
