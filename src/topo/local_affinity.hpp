// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "topo/affinity.hpp"
#include "topo/file_tree.hpp"

namespace oriel::topo {

/// Where the threads and the host memory of ranks of this process should be: what affinity.hpp says
/// of its machine and of what the calling thread may use. The settings cpu_affinity and
/// ignore_cpu_affinity are obeyed. Of the machine only NUMA nodes are read, when first needed and
/// then never again; that takes some tens of microseconds for each. Thread-safe. Never fails: what
/// is not known has no affinity.
class LocalAffinity {
 public:
  /// For the machine whose files these are.
  explicit LocalAffinity(FileTree files);
  /// For the process: the machine that the setting topo_file describes, or this one. Never
  /// destroyed.
  static LocalAffinity& of_process();

  /// For a rank that computes on the calling thread's processors.
  Affinity of_processors();
  /// For a rank on the GPU with this PCI address. That the thread may use no processor near it is
  /// logged once per process.
  Affinity of_gpu(std::string_view pci_address);

 private:
  LocalAffinity();
  std::shared_ptr<const Machine> machine();

  const FileTree files_;
  const bool follows_settings_;
  std::mutex mutex_;
  std::string described_by_;  // the topo_file of machine_
  std::shared_ptr<const Machine> machine_;
};

}  // namespace oriel::topo
