// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oriel::topo {

/// Small files below a root: the machine's own with "/", a fixture's with its folder. What is not
/// there, cannot be read or is not what it should be counts as absent. Local; opens files and
/// closes them.
class FileTree {
 public:
  /// No file of interest is longer, but tables of routes; what lies beyond is not read.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 10;
  /// Nor has any folder more entries.
  static constexpr std::size_t kMostEntries = 4096;

  /// What is told of every question, with the path that it is about. For tests, which count them.
  using Notice = std::function<void(std::string_view path)>;

  explicit FileTree(std::string root, Notice notice = {})
      : root_(std::move(root)), notice_(std::move(notice)) {}

  /// The text of a file without white space at its ends; of a longer one than `most` bytes, so
  /// much.
  std::optional<std::string> read(std::string_view path, std::size_t most = kMostBytes) const;
  /// A file that holds one decimal number and nothing else.
  std::optional<std::int64_t> read_number(std::string_view path) const;
  /// The names in a folder, sorted; empty if there is none.
  std::vector<std::string> list(std::string_view path) const;
  bool exists(std::string_view path) const;
  /// The last part of what a symbolic link names.
  std::optional<std::string> link_name(std::string_view path) const;
  /// The names on the way to what a path means once all links are followed, first to last; empty if
  /// it does not exist. They may begin above the root.
  std::vector<std::string> resolved(std::string_view path) const;

  const std::string& root() const { return root_; }

 private:
  std::string full(std::string_view path) const;

  std::string root_;
  Notice notice_;
};

}  // namespace oriel::topo
