// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// Names from files and drivers, which may hold anything, made fit to be shown.
namespace oriel::topo {

/// The text as UTF-8 without control characters, which would steer a terminal: each of those, and
/// each byte that is no UTF-8, becomes a question mark.
std::string printable(std::string_view text);

/// How many characters UTF-8 text has, which is about the columns that it takes.
std::size_t letters_of(std::string_view text);

/// At most `most` characters of UTF-8 text, the last one an ellipsis if it was longer.
std::string fitted(std::string text, std::size_t most);

/// printable(), for XML between tags and in attributes.
std::string xml_escaped(std::string_view text);

}  // namespace oriel::topo
