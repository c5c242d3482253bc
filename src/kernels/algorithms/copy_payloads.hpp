// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/algorithms/copy_bytes.hpp"
#include "kernels/algorithms/payload.hpp"

namespace oriel::kernels {

/// Stores `change(payload)` of `count` elements of type T, 16 bytes at a time. `to` must be aligned
/// to 16 bytes, as slots are. All threads of the group must call.
template <class Group, class T, class Change>
ORIEL_DEVICE_FN void copy_payloads(std::byte* to, const std::byte* from, std::uint64_t count,
                                   const Change& change) {
  using Buffer = UserBuffer<T, 16>;
  constexpr int kUnroll = 4;
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(from) % 16 == 0;
  const std::uint64_t whole = is_aligned ? count / Buffer::kElements : 0;
  const auto* const source = reinterpret_cast<const device::Pack*>(from);
  auto* const target = reinterpret_cast<device::Pack*>(to);
  copy_packs<Group, kUnroll>(target, source, whole, [&](const device::Pack& pack) {
    return __builtin_bit_cast(device::Pack,
                              change(__builtin_bit_cast(typename Buffer::Value, pack)));
  });
  const Buffer rest_from(from, count);
  const Buffer rest_to(to, count);
  ORIEL_DEVICE_KEEP_LOOP
  for (std::uint64_t i = whole + Group::rank(); i < rest_from.payloads(); i += Group::size()) {
    rest_to.store(i, change(rest_from.load(i)));
  }
}

}  // namespace oriel::kernels
