// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Parameter types of memory accesses. Include memory.hpp for the accesses themselves.
namespace oriel::device {

/// Memory order of one access. `weak` is an ordinary access: it must not race with another.
enum class Order : std::uint8_t { weak, relaxed, acquire, release, acq_rel };

/// Set of observers of an access: the threads of this device, or every processor that can map the
/// memory (other GPUs, CPUs, NICs). Host code ignores the scope.
enum class Scope : std::uint8_t { device, system };

/// 16 bytes that GPU code loads and stores with one instruction. In a relaxed access each 4-byte
/// word is indivisible; the 16 bytes together are not.
struct alignas(16) Pack {
  std::uint32_t word[4];
};

/// 16 bytes as two halves. In a relaxed access each 8-byte half is indivisible. The two together
/// are not, and either half may become visible first.
struct alignas(16) Pair {
  std::uint64_t half[2];
};

}  // namespace oriel::device
