// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/queue_failure.hpp"

#include "oriel/device/group.hpp"
#include "oriel/device/wait.hpp"

#include "net/reserve_if_empty.hpp"
#include "net/syndrome.hpp"

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
