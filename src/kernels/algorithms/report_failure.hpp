// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/memory.hpp"

#include "kernels/plan/arguments.hpp"

namespace oriel::kernels {

/// Reports to the host that the call has failed because of `rank`. `kind` says whether `rank` is an
/// LSA index or a world rank. Any thread may call this; it does not block.
///
/// Takes the arguments and not their fields: with a pointer to the record, the compiled frame of
/// exchange_kernel<3> has 80 bytes instead of 72.
template <class Arguments>
ORIEL_DEVICE_FN void report_failure(const Arguments& arguments, FailureKind kind,
                                    std::int32_t rank) {
  if (arguments.failure == nullptr) return;
  // Stores 8 bytes at once, so that kind and rank are read together.
  device::Memory::store<device::Order::release>(
      reinterpret_cast<std::uint64_t*>(arguments.failure),
      static_cast<std::uint64_t>(kind) |
          static_cast<std::uint64_t>(static_cast<std::uint32_t>(rank)) << 32);
}

}  // namespace oriel::kernels
