// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/queue.hpp"

namespace oriel::net::test {

namespace dq = oriel::device::queue;

/// Calls of a thread on the queue `view()` of a Pair, between memory of its ranks a and b, given as
/// offsets. Waits poll as M does.
template <class Pair, class M>
struct PairCalls {
  dq::Transfer transfer(std::uint64_t here, std::uint64_t there, std::uint64_t bytes) const {
    return {pair().a.region, here, pair().b.region, there, bytes};
  }
  dq::Posted put(const dq::Transfer& transfer) const {
    return dq::put<device::Thread, M>({}, pair().view(), transfer, pair().control);
  }
  dq::Posted put(std::uint64_t here, std::uint64_t there, std::uint64_t bytes) const {
    return put(transfer(here, there, bytes));
  }
  dq::Posted get(const dq::Transfer& transfer) const {
    return dq::get<device::Thread, M>({}, pair().view(), transfer, pair().control);
  }
  dq::Posted get(std::uint64_t here, std::uint64_t there, std::uint64_t bytes) const {
    return get(transfer(here, there, bytes));
  }
  dq::Posted put_immediate(const dq::Transfer& transfer, std::uint32_t value) const {
    return dq::put_immediate<device::Thread, M>({}, pair().view(), transfer, value, pair().control);
  }
  dq::Posted put_value(std::uint64_t value, std::uint64_t there) const {
    return dq::put_value<device::Thread, std::uint64_t, M>({}, pair().view(), value,
                                                           pair().b.region, there, pair().control);
  }
  dq::Posted add(std::uint64_t value, std::uint64_t there) const {
    return dq::atomic<dq::AtomicOp::add, device::Thread, std::uint64_t, M>(
        {}, pair().view(), pair().b.region, there, value, pair().control);
  }
  dq::QueueOutcome wait(dq::Posted posted) const {
    if (posted.outcome != dq::QueueOutcome::done) return posted.outcome;
    return dq::wait_complete<M>(pair().view(), posted.end, pair().control);
  }
  /// Returns the first error that the queue's NIC has recorded.
  dq::QueueError error() const { return dq::decode_error(*pair().there.memory().first_error); }

 private:
  const Pair& pair() const { return static_cast<const Pair&>(*this); }
};

}  // namespace oriel::net::test
