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

/// Parses attributes of elements. Errors begin with the line and the element.
namespace oriel::topo {

/// Upper bound for numbers of processors (exclusive) and of nodes (inclusive).
inline constexpr int kMostNumbers = 1 << 16;

/// Returns an error about an element: "line 7: <x> " followed by `what`.
Error odd(const XmlElement& element, const std::string& what);

/// Refuses text in an element whose format has none, such as accidental input or remains of a tag.
Status check_has_no_text(const XmlElement& element);

/// Counts elements that a reader ignores as unknown. A few may come from a later version; thousands
/// mean that the file is no description of a machine.
class UnknownElements {
 public:
  static constexpr std::size_t kMost = 1000;

  /// Counts an element and its descendants; refused beyond kMost.
  Status add(const XmlElement& element);
  /// Returns "2 unknown elements are left out, the first <x> in line 7"; empty if there is none.
  std::string text() const;

 private:
  std::size_t count_ = 0;
  std::string first_;
};

/// Parses a text that is one number and nothing else.
template <typename Number>
std::optional<Number> number_in(std::string_view text, int base = 10) {
  if (base == 16 && text.starts_with("0x")) text.remove_prefix(2);
  Number number{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Parses a number as C's strtol with base 0, as NCCL does: "16", "0x10" and "020" are equal.
template <typename Number>
std::optional<Number> c_number_in(std::string_view text) {
  if (text.starts_with("0x")) {
    return text.size() == 2 ? std::nullopt : number_in<Number>(text, 16);
  }
  const bool octal = text.size() > 1 && text.front() == '0';
  return number_in<Number>(text, octal ? 8 : 10);
}

/// Parses a finite decimal number.
std::optional<double> decimal_in(std::string_view text);

/// Returns an integer attribute within limits; `otherwise` if it is missing.
Result<int> integer(const XmlElement& element, const char* name, int otherwise, int least,
                    int most);

/// Returns an unsigned attribute, read as by c_number_in(), or else as hexadecimal digits, such as
/// "ab12"; 0 if it is missing.
Result<std::uint64_t> unsigned_integer(const XmlElement& element, const char* name);

/// Returns a hexadecimal attribute; 0 if it is missing.
Result<std::uint64_t> hexadecimal(const XmlElement& element, const char* name);

/// Returns a PCI address from a mandatory attribute.
Result<PciAddress> address_in(const XmlElement& element, const char* name);

/// Returns the numbers of the bits set in an attribute such as "00000000,0000ffff", ascending.
/// Groups have 32 bits, the highest first, with or without 0x; a group may be empty. Returns none
/// if the attribute is missing.
Result<std::vector<int>> mask_in(const XmlElement& element, const char* name);

}  // namespace oriel::topo
