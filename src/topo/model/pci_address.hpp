// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "oriel/error.hpp"

namespace oriel::topo {

/// Address of a PCI function. Ordered by its numbers.
struct PciAddress {
  std::uint32_t domain = 0;  ///< usually four digits; virtual machines and VMD use more
  std::uint8_t bus = 0;
  std::uint8_t device = 0;    ///< 0 to 31
  std::uint8_t function = 0;  ///< 0 to 7

  auto operator<=>(const PciAddress&) const = default;

  /// Returns text such as "0000:1b:00.0": lower case, a domain of at least four digits.
  std::string to_string() const;
};

/// Reads "0000:1b:00.0", "1B:00.0" (domain 0), and NVML's "00000000:1B:00.0".
Result<PciAddress> parse_pci_address(std::string_view text);

}  // namespace oriel::topo
