// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/printable.hpp"

#include <cstdint>

namespace oriel::topo {
namespace {

bool continues(char letter) {
  return (static_cast<unsigned char>(letter) & 0xc0) == 0x80;
}

/// The bytes of the character that UTF-8 text begins with; 0 if it begins with none.
std::size_t length_of_first(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = first < 0x80             ? 1
                             : (first & 0xe0) == 0xc0 ? 2
                             : (first & 0xf0) == 0xe0 ? 3
                             : (first & 0xf8) == 0xf0 ? 4
                                                      : 0;
  if (length == 0 || length > text.size()) return 0;
  constexpr unsigned char kPayload[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  std::uint32_t number = first & kPayload[length];
  for (std::size_t i = 1; i < length; ++i) {
    if (!continues(text[i])) return 0;
    number = number << 6 | (static_cast<unsigned char>(text[i]) & 0x3fU);
  }
  // Longer than need be, halves of UTF-16, beyond Unicode, and what XML has no place for.
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool half = number >= 0xd800 && number <= 0xdfff;
  const bool none = (number & 0xfffe) == 0xfffe || number > 0x10ffff;
  return number < kLeast[length] || half || none ? 0 : length;
}

/// C0, delete, and C1, which UTF-8 writes in two bytes.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const std::size_t length = length_of_first(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    if (length == 0 || is_control(character)) {
      shown += '?';
    } else {
      shown += character;
    }
    text.remove_prefix(character.size());
  }
  return shown;
}

std::size_t letters_of(std::string_view text) {
  std::size_t count = 0;
  for (const char letter : text) count += continues(letter) ? 0 : 1;
  return count;
}

std::string fitted(std::string text, std::size_t most) {
  if (letters_of(text) <= most || most == 0) return text;
  std::size_t end = 0;
  for (std::size_t count = 0; end < text.size(); ++end) {
    if (!continues(text[end]) && count++ == most - 1) break;
  }
  return text.substr(0, end) + "\u2026";
}

std::string xml_escaped(std::string_view text) {
  std::string safe;
  for (const char letter : printable(text)) {
    switch (letter) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += letter;
    }
  }
  return safe;
}

}  // namespace oriel::topo
