// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "topo/choice/affinity.hpp"

/// Puts threads and memory where they should be, and asks where they may. Containers often forbid
/// this; then things stay as they are, which the log tells once per process, at INFO.
namespace oriel::topo {

/// The processors that the calling thread may run on, as limited by itself and by control groups;
/// nothing where the system does not tell.
std::optional<std::vector<int>> cpus_of_this_thread();

/// The NUMA nodes from which the calling thread may have memory; nothing where the system does not
/// tell.
std::optional<std::vector<int>> memory_nodes_of_this_thread();

/// Whether somebody (as numactl does) has said where memory of the calling thread shall come from.
/// True also where that cannot be told. Such a wish counts more than ours.
bool has_memory_policy();

/// Keeps the calling thread, which must be one of the library's own, on these processors. Nothing
/// happens if it is there already, if there are none, or if memory runs out.
void run_this_thread_on(const std::vector<int>& cpus) noexcept;

/// Has [at, at + bytes), whole pages that nobody has touched yet, come from this NUMA node as long
/// as it has some memory. For a mapping of a memfd that holds for all mappings of it, in every
/// process. -1: nothing happens.
void prefer_memory_node(void* at, std::size_t bytes, int node);

/// While it lives, fresh memory that the calling thread causes to be taken comes from this NUMA
/// node as long as it has some. For calls into a driver, which take memory on their own. Where the
/// thread has a policy already, or for -1, nothing happens.
class MemoryNodeScope {
 public:
  explicit MemoryNodeScope(int node);
  ~MemoryNodeScope();
  MemoryNodeScope(const MemoryNodeScope&) = delete;
  MemoryNodeScope& operator=(const MemoryNodeScope&) = delete;

 private:
  bool changed_ = false;
};

}  // namespace oriel::topo
