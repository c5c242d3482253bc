// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/model/pci_address.hpp"

#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace oriel::topo {
namespace {

/// Removes the hexadecimal number before `end`, and `end` itself, from the front of `text`. If
/// `end` is 0, the number extends to the end of the text.
std::optional<std::uint32_t> take_number(std::string_view& text, char end, std::uint32_t most) {
  const std::size_t length = end == 0 ? text.size() : text.find(end);
  if (length == std::string_view::npos || length == 0 || length > 8) return std::nullopt;
  std::uint32_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + length, number, 16);
  if (error != std::errc() || rest != text.data() + length || number > most) return std::nullopt;
  text.remove_prefix(end == 0 ? length : length + 1);
  return number;
}

}  // namespace

std::string PciAddress::to_string() const {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
}

Result<PciAddress> parse_pci_address(std::string_view text) {
  std::string_view rest = text;
  PciAddress address;
  const bool has_domain = rest.find(':') != rest.rfind(':');
  const auto domain = has_domain ? take_number(rest, ':', UINT32_MAX) : 0;
  const auto bus = take_number(rest, ':', 0xff);
  const auto device = take_number(rest, '.', 0x1f);
  const auto function = take_number(rest, 0, 7);
  if (!domain || !bus || !device || !function) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("'{}' is no PCI address", text.substr(0, 64)))
        .with_hint("they look like 0000:1b:00.0");
  }
  address.domain = *domain;
  address.bus = static_cast<std::uint8_t>(*bus);
  address.device = static_cast<std::uint8_t>(*device);
  address.function = static_cast<std::uint8_t>(*function);
  return address;
}

}  // namespace oriel::topo
