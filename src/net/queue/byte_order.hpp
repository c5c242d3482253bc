// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// Big-endian fields in raw bytes, as adapters write and read them. The device headers have their
/// own conversions. The software NIC keeps these separate, so that tests expose a mistake in
/// either.
namespace oriel::net {

inline std::uint32_t load_big32(const std::byte* from) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(from[i]);
  return value;
}

inline std::uint64_t load_big64(const std::byte* from) {
  return static_cast<std::uint64_t>(load_big32(from)) << 32 | load_big32(from + 4);
}

inline void store_big16(std::byte* to, std::uint16_t value) {
  to[0] = static_cast<std::byte>(value >> 8);
  to[1] = static_cast<std::byte>(value);
}

inline void store_big32(std::byte* to, std::uint32_t value) {
  store_big16(to, static_cast<std::uint16_t>(value >> 16));
  store_big16(to + 2, static_cast<std::uint16_t>(value));
}

inline void store_big64(std::byte* to, std::uint64_t value) {
  store_big32(to, static_cast<std::uint32_t>(value >> 32));
  store_big32(to + 4, static_cast<std::uint32_t>(value));
}

}  // namespace oriel::net
