// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "oriel/device/memory.hpp"
#include "oriel/types.hpp"

#include "kernels/plan/algorithm.hpp"
#include "kernels/plan/arguments.hpp"
#include "kernels/plan/collective.hpp"

/// How ranks find out that they are in different calls: by a few bits of each call that travel with
/// its data, and by a record of the call that the ranks of a team can read.
namespace oriel::kernels {

/// What ranks must agree on in one call.
struct CollectiveCall {
  Collective collective = Collective::all_reduce;
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t count = 0;
  std::int32_t root = 0;  ///< where has_root()

  friend bool operator==(const CollectiveCall& a, const CollectiveCall& b) {
    return a.collective == b.collective && a.type == b.type && a.count == b.count &&
           (a.op == b.op || !reduces(a.collective)) &&
           (a.root == b.root || !has_root(a.collective));
  }
};

/// A hash of an all-reduce, reduce, reduce-scatter, or of a collective that is streamed inside one
/// team, of kSignatureBits, or of a call of no elements of any collective. The highest 16 bits
/// alone tell apart all types and operations of one count: multiples of the golden ratio lie far
/// from each other.
constexpr std::uint32_t all_reduce_signature(DataType type, ReduceOp op, std::uint64_t count,
                                             Algorithm algorithm,
                                             Collective collective = Collective::all_reduce,
                                             std::int32_t root = 0) {
  std::uint64_t hash = (count << 12) ^ (count >> 52) ^ static_cast<std::uint64_t>(type) << 8 ^
                       static_cast<std::uint64_t>(op) << 4 ^
                       static_cast<std::uint64_t>(collective) << 56 ^
                       static_cast<std::uint64_t>(algorithm);
  hash ^= static_cast<std::uint64_t>(root) * 0xff51afd7ed558ccdu;
  hash *= 0x9e3779b97f4a7c15u;
  return static_cast<std::uint32_t>(hash >> (64 - kSignatureBits));
}

/// The last call that a CPU rank has begun, in its scratch memory. It alone writes it, in each
/// call; others read it when they have waited for long.
struct CallRecord {
  std::uint64_t version;  ///< twice the number of calls so far, and one more while it is written
  std::uint64_t count;
  std::uint64_t kind;  ///< root << 24, then collective, type and operation, a byte each
};

/// Notes that this rank begins its next call, and says which one that is, from 1.
inline std::uint64_t record_call(CallRecord& record, const CollectiveCall& call) {
  using device::Memory;
  using device::Order;
  const auto version = Memory::load<Order::relaxed>(&record.version);
  Memory::store<Order::relaxed>(&record.version, version + 1);
  // With release, so that nobody sees one of these and still the version before.
  Memory::store<Order::release>(&record.count, call.count);
  const std::uint64_t root = static_cast<std::uint32_t>(call.root);
  Memory::store<Order::release>(&record.kind,
                                root << 24 | static_cast<std::uint64_t>(call.collective) << 16 |
                                    static_cast<std::uint64_t>(call.type) << 8 |
                                    static_cast<std::uint64_t>(call.op));
  Memory::store<Order::release>(&record.version, version + 2);
  return version / 2 + 1;
}

/// The signature of a CPU rank's call of this number: so that equal calls differ if one of the
/// ranks has had one with no elements before. Those of one number differ by as much as they did.
/// GPU ranks do without, since a graph may run a call many times: theirs of none are kernels.
constexpr std::uint32_t numbered_signature(std::uint32_t signature, std::uint64_t number) {
  const std::uint64_t hash = number * 0x9e3779b97f4a7c15u;
  return signature ^ static_cast<std::uint32_t>(hash >> (64 - kSignatureBits));
}

struct NumberedCall {
  std::uint64_t number = 0;  ///< from 1
  CollectiveCall call;
};

/// What a record says; nothing before the first call, or if it is being written. The words are
/// another rank's: values out of range are for name_of() to deal with.
inline std::optional<NumberedCall> read_call(const CallRecord& record) {
  using device::Memory;
  using device::Order;
  const auto version = Memory::load<Order::acquire>(&record.version);
  const auto count = Memory::load<Order::acquire>(&record.count);
  const auto kind = Memory::load<Order::acquire>(&record.kind);
  const bool settled = Memory::load<Order::relaxed>(&record.version) == version;
  if (!settled || version == 0 || version % 2 != 0) return std::nullopt;
  const auto byte = [&](int place) { return static_cast<std::uint8_t>(kind >> place); };
  return NumberedCall{
      version / 2,
      {static_cast<Collective>(byte(16)), static_cast<DataType>(byte(8)),
       static_cast<ReduceOp>(byte(0)), count, static_cast<std::int32_t>(kind >> 24)}};
}

}  // namespace oriel::kernels
