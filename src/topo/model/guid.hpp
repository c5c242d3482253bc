// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace oriel::topo {

/// Reads a 64-bit GUID as the kernel and hwloc write it: 16 hexadecimal digits, with or without
/// colons between them. Empty for any other text.
std::optional<std::uint64_t> guid_in(std::string_view text);

}  // namespace oriel::topo
