// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Parameter types of memory accesses. Include memory.hpp for the accesses themselves.
///
/// Example: copies vectors of 16 bytes, then tells another CTA of this device that they are there.
/// ```cpp
/// #include "oriel/device/memory.hpp"
/// ORIEL_DEVICE_FN void copy_packs(oriel::device::Pack* to, const oriel::device::Pack* from,
///                                 std::uint32_t packs, std::uint32_t* done) {
///   using namespace oriel::device;
///   for (std::uint32_t i = 0; i < packs; ++i) {
///     Memory::store<Order::weak>(to + i, Memory::load<Order::weak>(from + i));
///   }
///   Memory::store<Order::release, Scope::device>(done, 1u);
/// }
/// ```
namespace oriel::device {

/// Memory order of one access. `weak` is an ordinary access: it must not race with another. Each
/// function of memory.hpp states which orders it accepts.
enum class Order : std::uint8_t { weak, relaxed, acquire, release, acq_rel };

/// Set of observers of an access: the threads of this device, or every processor that can map the
/// memory (other GPUs, CPUs, NICs). Host code ignores the scope.
enum class Scope : std::uint8_t { device, system };

/// 16 bytes that GPU code loads and stores with one instruction. In a relaxed access each 4-byte
/// word is indivisible; the 16 bytes together are not.
struct alignas(16) Pack {
  std::uint32_t word[4];  ///< in the order of their addresses
};

/// 16 bytes as two halves. In a relaxed access each 8-byte half is indivisible. The two together
/// are not, and either half may become visible first.
struct alignas(16) Pair {
  std::uint64_t half[2];  ///< in the order of their addresses
};

}  // namespace oriel::device
