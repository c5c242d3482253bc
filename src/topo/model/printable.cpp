// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/model/printable.hpp"

#include <cstdint>

namespace oriel::topo {
namespace {

bool continues(char letter) {
  return (static_cast<unsigned char>(letter) & 0xc0) == 0x80;
}

/// First character of a UTF-8 text.
struct Character {
  std::size_t length = 0;  // in bytes; 0: the text does not begin with a valid character
  std::uint32_t number = 0;
};

Character first_of(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = first < 0x80             ? 1
                             : (first & 0xe0) == 0xc0 ? 2
                             : (first & 0xf0) == 0xe0 ? 3
                             : (first & 0xf8) == 0xf0 ? 4
                                                      : 0;
  if (length == 0 || length > text.size()) return {};
  constexpr unsigned char kPayload[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  std::uint32_t number = first & kPayload[length];
  for (std::size_t i = 1; i < length; ++i) {
    if (!continues(text[i])) return {};
    number = number << 6 | (static_cast<unsigned char>(text[i]) & 0x3fU);
  }
  // Rejects overlong forms, surrogates, numbers beyond Unicode, and noncharacters such as U+FFFE,
  // which XML excludes.
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool half = number >= 0xd800 && number <= 0xdfff;
  const bool none = (number & 0xfffe) == 0xfffe || number > 0x10ffff;
  if (number < kLeast[length] || half || none) return {};
  return {length, number};
}

/// Returns whether a character is C0, delete, C1 or an invisible one that changes text direction or
/// breaks lines. The latter would change how text beside a name is displayed.
bool is_control(std::uint32_t number) {
  const auto within = [&](std::uint32_t first, std::uint32_t last) {
    return number >= first && number <= last;
  };
  return number < 0x20 || within(0x7f, 0x9f) || number == 0x061c || within(0x200e, 0x200f) ||
         within(0x2028, 0x202e) || within(0x2066, 0x2069);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const Character character = first_of(text);
    const std::size_t length = character.length == 0 ? 1 : character.length;
    if (character.length == 0 || is_control(character.number)) {
      shown += '?';
    } else {
      shown += text.substr(0, length);
    }
    text.remove_prefix(length);
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
