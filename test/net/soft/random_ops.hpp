// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/bytes.hpp"
#include "net/queue/operations_body.hpp"

/// Body for CPU and GPU threads: random operations on one queue, and a mirror that gives the
/// expected result.
namespace oriel::net::test {

struct RandomOp {
  enum Kind : std::uint32_t { put, get, value, add, fetch_add };
  Kind kind = put;
  std::uint64_t local = 0;  ///< offset in the local region
  std::uint64_t remote = 0;
  std::uint64_t bytes = 0;
  std::uint64_t operand = 0;
  std::uint64_t old = 0;  ///< old value of a fetch_add, set when it is done
};

template <class Group, class M>
ORIEL_DEVICE_FN dq::Posted post_op(const OperationsPath& path, RandomOp& op) {
  const Group group{};
  const dq::Transfer transfer{path.local, op.local, path.remote, op.remote, op.bytes};
  switch (op.kind) {
    case RandomOp::put:
      return dq::put<Group, M>(group, path.queue, transfer, path.control);
    case RandomOp::get:
      return dq::get<Group, M>(group, path.queue, transfer, path.control);
    case RandomOp::value:
      return dq::put_value<Group, std::uint64_t, M>(group, path.queue, op.operand, path.remote,
                                                    op.remote, path.control);
    case RandomOp::add:
      return dq::atomic<dq::AtomicOp::add, Group, std::uint64_t, M>(
          group, path.queue, path.remote, op.remote, op.operand, path.control);
    default:
      break;
  }
  dq::Posted posted;
  std::uint64_t old = 0;
  posted.outcome = dq::fetch_atomic<dq::AtomicOp::add, Group, std::uint64_t, M>(
      group, path.queue, path.remote, op.remote, op.operand, old, path.control);
  if (group.rank() == 0) op.old = old;
  return posted;
}

/// Runs the operations one after another by all threads of the group, and waits for all of them.
template <class Group, class M = device::Memory>
ORIEL_DEVICE_FN dq::QueueOutcome run_ops(const OperationsPath& path, RandomOp* ops,
                                         std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const dq::Posted posted = post_op<Group, M>(path, ops[i]);
    dq::QueueOutcome outcome = posted.outcome;
    // Waits for each read, because reads are not ordered among each other.
    if (outcome == dq::QueueOutcome::done && ops[i].kind == RandomOp::get) {
      outcome = dq::wait_complete<M>(path.queue, posted.end, path.control);
    }
    Group().sync();
    if (outcome != dq::QueueOutcome::done) return outcome;
  }
  return dq::wait_all<M>(path.queue, path.control);
}

/// Draws operations between two memories of `bytes` bytes: sources in the first halves, targets in
/// the second.
inline std::vector<RandomOp> random_ops(std::mt19937_64& random, std::size_t bytes, int count,
                                        std::uint64_t longest) {
  const std::uint64_t half = bytes / 2;
  std::vector<RandomOp> ops(static_cast<std::size_t>(count));
  for (RandomOp& op : ops) {
    op.kind = static_cast<RandomOp::Kind>(random() % 5);
    const bool word = op.kind > RandomOp::get;
    const std::uint64_t most = random() % 8 == 0 ? longest : std::min<std::uint64_t>(longest, 5000);
    op.bytes = word ? 8 : 1 + random() % most;
    op.operand = random();
    const std::uint64_t source = random() % (half - op.bytes);
    const std::uint64_t target = half + random() % (half - op.bytes);
    op.local = op.kind == RandomOp::get ? target : source;
    op.remote = op.kind == RandomOp::get ? source : target;
    if (word) op.remote &= ~std::uint64_t{7};
  }
  return ops;
}

/// Expected memory of both sides. apply() also sets the expected old value of an operation.
struct Mirror {
  explicit Mirror(std::mt19937_64& random, std::size_t bytes) : a(bytes), b(bytes) {
    for (Bytes* side : {&a, &b}) {
      std::generate(side->begin(), side->end(), [&] { return static_cast<std::byte>(random()); });
    }
  }
  void apply(RandomOp& op) {
    if (op.kind == RandomOp::put) std::memcpy(b.data() + op.remote, a.data() + op.local, op.bytes);
    if (op.kind == RandomOp::get) std::memcpy(a.data() + op.local, b.data() + op.remote, op.bytes);
    if (op.kind == RandomOp::value) std::memcpy(b.data() + op.remote, &op.operand, 8);
    if (op.kind != RandomOp::add && op.kind != RandomOp::fetch_add) return;
    std::uint64_t old = 0;
    std::memcpy(&old, b.data() + op.remote, 8);
    if (op.kind == RandomOp::fetch_add) op.old = old;
    const std::uint64_t sum = old + op.operand;
    std::memcpy(b.data() + op.remote, &sum, 8);
  }
  Bytes a, b;
};

inline bool same_old_values(const std::vector<RandomOp>& expected, const RandomOp* got) {
  return std::all_of(expected.begin(), expected.end(),
                     [&](const RandomOp& op) { return got++->old == op.old; });
}

}  // namespace oriel::net::test
