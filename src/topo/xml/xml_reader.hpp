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

/// An XML element and its contents.
struct XmlElement {
  std::string name;
  std::string text;  ///< text outside child elements, trimmed of white space
  std::vector<std::pair<std::string, std::string>> attributes;
  std::vector<XmlElement> children;
  std::size_t line = 0;       ///< first line, from 1
  std::size_t text_line = 0;  ///< first line of its text; 0: it has none

  /// Returns the value of an attribute; null if there is none.
  const std::string* find(std::string_view attribute) const;
};

/// Limits that exceed every description of a machine.
struct XmlLimits {
  std::size_t bytes = std::size_t{16} << 20;
  std::size_t elements = 200'000;
  std::size_t attributes = 500'000;     ///< total of all elements
  std::size_t attributes_of_one = 128;  ///< per element
  std::size_t depth = 64;
  /// Total timeout for reading a pipe or a terminal.
  std::chrono::milliseconds timeout{5000};
  /// Waits also for a named pipe that nobody has opened for writing; false: refuses such a pipe.
  bool await_writer = true;
};

/// Parses a document with expat. Refuses, with line and reason, malformed or truncated documents
/// and those that exceed a limit. Also refuses declarations of entities and attributes:
/// descriptions do not need them, and they can expand without bound. A named document type is
/// accepted but not loaded.
Result<XmlElement> parse_xml(std::string_view text, const XmlLimits& limits = {});

/// Returns the text of a file of at most `limits.bytes`; see read_file(). Blocks at most for the
/// timeout `limits.timeout`.
Result<std::string> read_xml_file(const std::string& path, const XmlLimits& limits = {});

}  // namespace oriel::topo
