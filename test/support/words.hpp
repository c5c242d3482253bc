// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace oriel::test {

inline bool has(std::string_view text, std::string_view words) {
  return text.find(words) != std::string_view::npos;
}

/// Returns the text of a file, or nothing if the file does not exist.
inline std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace oriel::test
