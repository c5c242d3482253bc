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

/// Detects ranks that are in different calls. A few bits of each call, its signature, travel with
/// its data. A record of the call lies where the other ranks of the team can read it.
namespace oriel::kernels {

/// Parameters of a call on which all ranks must agree.
struct CollectiveCall {
  Collective collective = Collective::all_reduce;
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t count = 0;
  std::int32_t root = 0;  ///< only if has_root(collective)

  friend bool operator==(const CollectiveCall& a, const CollectiveCall& b) {
    return a.collective == b.collective && a.type == b.type && a.count == b.count &&
           (a.op == b.op || !reduces(a.collective)) &&
           (a.root == b.root || !has_root(a.collective));
  }
};

/// Hashes a call to kSignatureBits bits. Covers all-reduces, reduces, reduce-scatters, collectives
/// in streams or lines inside one team, and empty calls of any collective. For one count
/// the highest 16 bits alone distinguish all types and operations. This works because multiples of
/// the golden ratio lie far from each other.
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

/// Describes the last call that a CPU rank has started, in its scratch memory. Only that rank
/// writes it, in each call. Other ranks read it after a long wait. A sequence lock: `version` is
/// odd during a write.
struct CallRecord {
  std::uint64_t version;  ///< twice the number of calls so far, plus 1 during a write
  std::uint64_t count;
  std::uint64_t kind;  ///< root << 24 | collective << 16 | type << 8 | operation
};

/// Records that this rank starts its next call. Returns the number of the call, from 1.
inline std::uint64_t record_call(CallRecord& record, const CollectiveCall& call) {
  using device::Memory;
  using device::Order;
  const auto version = Memory::load<Order::relaxed>(&record.version);
  Memory::store<Order::relaxed>(&record.version, version + 1);
  // Release orders these stores behind the odd version. So no reader sees a new field together with
  // the old version.
  Memory::store<Order::release>(&record.count, call.count);
  const std::uint64_t root = static_cast<std::uint32_t>(call.root);
  Memory::store<Order::release>(&record.kind,
                                root << 24 | static_cast<std::uint64_t>(call.collective) << 16 |
                                    static_cast<std::uint64_t>(call.type) << 8 |
                                    static_cast<std::uint64_t>(call.op));
  Memory::store<Order::release>(&record.version, version + 2);
  return version / 2 + 1;
}

/// Mixes the call's number into the signature of a CPU rank. An empty call exchanges no data, so
/// ranks may have made different numbers of calls. Equal calls with different numbers then have
/// different signatures. Signatures of one number differ as before. GPU ranks do not use numbers,
/// since a graph may replay a call many times. Their empty calls are kernels instead.
constexpr std::uint32_t numbered_signature(std::uint32_t signature, std::uint64_t number) {
  const std::uint64_t hash = number * 0x9e3779b97f4a7c15u;
  return signature ^ static_cast<std::uint32_t>(hash >> (64 - kSignatureBits));
}

struct NumberedCall {
  std::uint64_t number = 0;  ///< from 1
  CollectiveCall call;
};

/// Reads another rank's record. Returns nothing before the first call or during a write. Values may
/// be out of range, because another rank wrote them; name_of() handles such values.
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
