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

/// Small files below a root: "/" for the machine's own, a folder for a fixture. Files that are
/// missing, unreadable or of the wrong kind count as absent. Local; opens and closes files.
class FileTree {
 public:
  /// Default limit on the bytes read of a file. Only route tables can be longer; the rest is not
  /// read.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 10;
  /// Limit on the entries read of a folder; no folder of interest has more.
  static constexpr std::size_t kMostEntries = 4096;

  /// Called with the path of every access. For tests, which count accesses.
  using Notice = std::function<void(std::string_view path)>;

  explicit FileTree(std::string root, Notice notice = {})
      : root_(std::move(root)), notice_(std::move(notice)) {}

  /// Returns the text of a file, at most its first `most` bytes, without white space at its ends.
  std::optional<std::string> read(std::string_view path, std::size_t most = kMostBytes) const;
  /// Returns the number in a file that contains one decimal number and nothing else.
  std::optional<std::int64_t> read_number(std::string_view path) const;
  /// Returns the names in a folder, sorted; empty if there is none.
  std::vector<std::string> list(std::string_view path) const;
  bool exists(std::string_view path) const;
  /// Returns the last component of a symbolic link's target.
  std::optional<std::string> link_name(std::string_view path) const;
  /// Returns the components of a path after resolving all links, first to last; empty if it does
  /// not exist. They may begin above the root.
  std::vector<std::string> resolved(std::string_view path) const;

  const std::string& root() const { return root_; }

 private:
  std::string full(std::string_view path) const;

  std::string root_;
  Notice notice_;
};

}  // namespace oriel::topo
