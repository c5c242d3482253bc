// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// Makes names from files and drivers, which may hold any bytes, fit for display.
namespace oriel::topo {

/// Returns the text as UTF-8 without control characters, which would control a terminal. Each of
/// these, and each byte that is not UTF-8, becomes a question mark.
std::string printable(std::string_view text);

/// Returns the number of characters of UTF-8 text, which is about its number of columns.
std::size_t letters_of(std::string_view text);

/// Shortens UTF-8 text to at most `most` characters, the last one an ellipsis. 0: no limit.
std::string fitted(std::string text, std::size_t most);

/// Returns printable() text, escaped for XML between tags and in attributes.
std::string xml_escaped(std::string_view text);

}  // namespace oriel::topo
