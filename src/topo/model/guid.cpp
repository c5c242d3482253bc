// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/model/guid.hpp"

#include <algorithm>
#include <charconv>
#include <string>

namespace oriel::topo {

std::optional<std::uint64_t> guid_in(std::string_view text) {
  constexpr std::size_t kDigits = 16;
  std::string digits(text);
  std::erase(digits, ':');
  if (digits.size() != kDigits) return std::nullopt;
  std::uint64_t guid = 0;
  const char* const end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, guid, 16);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return guid;
}

}  // namespace oriel::topo
