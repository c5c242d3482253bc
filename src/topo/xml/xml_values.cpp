// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/xml/xml_values.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace oriel::topo {

Error odd(const XmlElement& element, const std::string& what) {
  return Error(ErrorCode::invalid_argument,
               fmt::format("line {}: <{}> {}", element.line, element.name.substr(0, 32), what))
      .with_hint("correct the description at this line, or name another file");
}

Status check_has_no_text(const XmlElement& element) {
  if (element.text.empty()) return {};
  return Error(ErrorCode::invalid_argument,
               fmt::format("line {}: <{}> holds the text '{}', where none belongs",
                           element.text_line, element.name.substr(0, 32),
                           element.text.substr(0, element.text.find('\n')).substr(0, 32)))
      .with_hint("remove the text");
}

namespace {

std::size_t elements_in(const XmlElement& element) {  // the parser limits the depth
  std::size_t count = 1;
  for (const XmlElement& child : element.children) count += elements_in(child);
  return count;
}

}  // namespace

Status UnknownElements::add(const XmlElement& element) {
  if (count_ == 0) {
    first_ = fmt::format("<{}> in line {}", element.name.substr(0, 32), element.line);
  }
  count_ += elements_in(element);
  if (count_ <= kMost) return {};
  return odd(element,
             fmt::format("makes more than {} unknown elements, the first {}", kMost, first_));
}

std::string UnknownElements::text() const {
  if (count_ == 0) return "";
  return fmt::format("{} unknown element{} left out, the first {}", count_,
                     count_ == 1 ? " is" : "s are", first_);
}

std::optional<double> decimal_in(std::string_view text) {
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(number)) return std::nullopt;
  return number;
}

Result<int> integer(const XmlElement& element, const char* name, int otherwise, int least,
                    int most) {
  const std::string* text = element.find(name);
  if (text == nullptr) return otherwise;
  const auto number = c_number_in<int>(*text);
  if (!number || *number < least || *number > most) {
    return odd(element, fmt::format("has {} '{}', not a number from {} to {}", name,
                                    text->substr(0, 32), least, most));
  }
  return *number;
}

Result<std::uint64_t> unsigned_integer(const XmlElement& element, const char* name) {
  const std::string* text = element.find(name);
  if (text == nullptr) return std::uint64_t{0};
  if (const auto number = c_number_in<std::uint64_t>(*text)) return *number;
  return hexadecimal(element, name);
}

Result<std::uint64_t> hexadecimal(const XmlElement& element, const char* name) {
  const std::string* text = element.find(name);
  if (text == nullptr) return std::uint64_t{0};
  const auto number = number_in<std::uint64_t>(*text, 16);
  if (number) return *number;
  return odd(element,
             fmt::format("has {} '{}', not a hexadecimal number", name, text->substr(0, 32)));
}

Result<PciAddress> address_in(const XmlElement& element, const char* name) {
  const std::string* text = element.find(name);
  if (text == nullptr) return odd(element, fmt::format("has no {}", name));
  auto address = parse_pci_address(*text);
  if (address.ok()) return address;
  return odd(element,
             fmt::format("has {} '{}', which is no PCI address", name, text->substr(0, 32)));
}

Result<std::vector<int>> mask_in(const XmlElement& element, const char* name) {
  std::vector<int> numbers;
  const std::string* text = element.find(name);
  if (text == nullptr) return numbers;
  std::vector<std::uint32_t> groups;
  for (std::size_t begin = 0; begin <= text->size();) {
    const std::size_t end = std::min(text->find(',', begin), text->size());
    const std::string_view digits = std::string_view(*text).substr(begin, end - begin);
    const auto group = digits.empty() ? 0U : number_in<std::uint32_t>(digits, 16);
    if (!group || text->empty() || groups.size() >= std::size_t{kMostNumbers} / 32) {
      return odd(element, fmt::format("has {} '{}', which is no mask of up to {} bits", name,
                                      text->substr(0, 32), kMostNumbers));
    }
    groups.push_back(*group);
    begin = end + 1;
  }
  std::reverse(groups.begin(), groups.end());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (int bit = 0; bit < 32; ++bit) {
      if ((groups[group] >> bit & 1) != 0) numbers.push_back(static_cast<int>(group) * 32 + bit);
    }
  }
  return numbers;
}

}  // namespace oriel::topo
