// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include <stdlib.h>

namespace oriel::topo {

/// A folder of files that stands for the root of a machine; gone with its owner.
class TemporaryTree {
 public:
  TemporaryTree() {
    std::string name = "/tmp/oriel-tree-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    root_ = name;
  }
  TemporaryTree(const TemporaryTree&) = delete;
  TemporaryTree& operator=(const TemporaryTree&) = delete;
  ~TemporaryTree() {
    std::error_code error;
    std::filesystem::remove_all(root_, error);
  }

  const std::string& root() const { return root_; }

  void file(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void link(const std::string& path, const std::string& target) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::filesystem::create_symlink(target, root_ + path);
  }
  void folder(const std::string& path) const { std::filesystem::create_directories(root_ + path); }

 private:
  std::string root_;
};

}  // namespace oriel::topo
