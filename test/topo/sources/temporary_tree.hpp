// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <stdlib.h>

namespace oriel::topo {

/// A folder of files that stands for the root of a machine; removed by the destructor.
class TemporaryTree {
 public:
  TemporaryTree() {
    // Prefers /dev/shm, which uses no disk, because tests create thousands of files.
    const bool shared_memory = std::filesystem::is_directory("/dev/shm");
    std::string name = shared_memory ? "/dev/shm/topo-tree-XXXXXX" : "/tmp/topo-tree-XXXXXX";
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

/// Adds the files of two RDMA ports and two network interfaces. The fastest active port has 200
/// Gbit/s.
inline void add_network(const TemporaryTree& tree) {
  for (const char* port : {"mlx5_0/ports/1", "mlx5_1/ports/1"}) {
    const std::string folder = std::string("/sys/class/infiniband/") + port;
    const bool first = port[5] == '0';
    tree.file(folder + "/state", first ? "4: ACTIVE\n" : "1: DOWN\n");
    tree.file(folder + "/rate", first ? "200 Gb/sec (4X HDR)\n" : "400 Gb/sec (4X NDR)\n");
  }
  for (const char* name : {"eth0", "eth1"}) {
    const std::string folder = std::string("/sys/class/net/") + name;
    tree.file(folder + "/operstate", "up\n");
    tree.file(folder + "/speed", "100000\n");
  }
}

/// Counts the paths that concern network devices and routes.
inline std::size_t asked_about_network(const std::vector<std::string>& paths) {
  std::size_t count = 0;
  for (const std::string& path : paths) {
    for (const char* const begin : {"/sys/class/infiniband", "/sys/class/net", "/proc/net/"}) {
      if (path.rfind(begin, 0) == 0) ++count;
    }
  }
  return count;
}

}  // namespace oriel::topo
