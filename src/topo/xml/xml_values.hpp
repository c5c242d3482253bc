// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oriel/error.hpp"

#include "topo/model/pci_address.hpp"
#include "topo/xml/xml_reader.hpp"

/// What attributes of elements mean. Errors begin with the line and the element.
namespace oriel::topo {

/// Processors and nodes are numbered below this.
inline constexpr int kMostNumbers = 1 << 16;

/// The error that an element of a description `what`.
Error odd(const XmlElement& element, const std::string& what);

/// Refuses text in an element of a format that has none there: what somebody has typed or pasted
/// into a file, or left of a tag.
Status check_has_no_text(const XmlElement& element);

/// Elements that a reader leaves out for it does not know them. A few are what a later version has
/// more; thousands are no description of a machine.
class UnknownElements {
 public:
  static constexpr std::size_t kMost = 1000;

  /// Counts an element with all that stands in it; refused beyond kMost.
  Status add(const XmlElement& element);
  /// "2 unknown elements are left out, the first <x> in line 7"; empty if there is none.
  std::string text() const;

 private:
  std::size_t count_ = 0;
  std::string first_;
};

/// A number and nothing else.
template <typename Number>
std::optional<Number> number_in(std::string_view text, int base = 10) {
  if (base == 16 && text.starts_with("0x")) text.remove_prefix(2);
  Number number{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return number;
}

/// A number as C's strtol reads it with base 0, which NCCL does: "16", "0x10" and "020" are the
/// same.
template <typename Number>
std::optional<Number> c_number_in(std::string_view text) {
  if (text.starts_with("0x")) {
    return text.size() == 2 ? std::nullopt : number_in<Number>(text, 16);
  }
  const bool octal = text.size() > 1 && text.front() == '0';
  return number_in<Number>(text, octal ? 8 : 10);
}

/// A finite one with decimals.
std::optional<double> decimal_in(std::string_view text);

/// An integer attribute within limits; `otherwise` if there is none.
Result<int> integer(const XmlElement& element, const char* name, int otherwise, int least,
                    int most);

/// A number that has 0x before it where it is hexadecimal, or letters in it; 0 if there is none.
Result<std::uint64_t> unsigned_integer(const XmlElement& element, const char* name);

/// A hexadecimal attribute; 0 if there is none.
Result<std::uint64_t> hexadecimal(const XmlElement& element, const char* name);

/// An attribute that must be there and be a PCI address.
Result<PciAddress> address_in(const XmlElement& element, const char* name);

/// The numbers whose bits are set in an attribute such as "00000000,0000ffff", ascending: groups of
/// 32 bits, the highest first, with or without 0x before each; one may be empty. None if there is
/// no such attribute.
Result<std::vector<int>> mask_in(const XmlElement& element, const char* name);

}  // namespace oriel::topo
