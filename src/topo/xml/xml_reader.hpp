// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oriel/error.hpp"

namespace oriel::topo {

/// An element with what stands in it.
struct XmlElement {
  std::string name;
  std::string text;  ///< what stands in it beside elements, without white space at its ends
  std::vector<std::pair<std::string, std::string>> attributes;
  std::vector<XmlElement> children;
  std::size_t line = 0;       ///< where it begins, from 1
  std::size_t text_line = 0;  ///< where its text does; 0: it has none

  /// The value of an attribute; null if there is none.
  const std::string* find(std::string_view attribute) const;
};

/// What a description of a machine needs at most, with room to spare.
struct XmlLimits {
  std::size_t bytes = std::size_t{16} << 20;
  std::size_t elements = 200'000;
  std::size_t attributes = 500'000;     ///< of all elements together
  std::size_t attributes_of_one = 128;  ///< of one element
  std::size_t depth = 64;
  /// How long a pipe or a terminal is waited for, in all.
  std::chrono::milliseconds patience{5000};
  /// Whether that goes for a pipe with a name which nobody has opened to write; else it is refused.
  bool await_writer = true;
};

/// Reads a document, with expat. Refused, with the line and the reason: what is not well-formed or
/// ends early, what exceeds a limit, and declarations of entities, which documents of this kind do
/// not need and others use to grow without bound. A document type may be named; it is not loaded.
Result<XmlElement> parse_xml(std::string_view text, const XmlLimits& limits = {});

/// The text of a file of at most `limits.bytes`; see read_file(). Blocks no longer than the
/// patience.
Result<std::string> read_xml_file(const std::string& path, const XmlLimits& limits = {});

}  // namespace oriel::topo
