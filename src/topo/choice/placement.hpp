// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "topo/choice/affinity.hpp"

/// Places threads and memory, and reads where they are allowed. Containers often forbid placement;
/// nothing changes then, which is logged once per process at INFO.
namespace oriel::topo {

/// Returns the processors that the calling thread may run on, as limited by its affinity and by
/// control groups. Returns nothing if the system does not report them.
std::optional<std::vector<int>> cpus_of_this_thread();

/// Returns the NUMA nodes from which the calling thread may allocate. Returns nothing if the system
/// does not report them.
std::optional<std::vector<int>> memory_nodes_of_this_thread();

/// Returns whether the calling thread has a memory policy, such as numactl's; true if this is
/// unknown. Such a policy has priority over Oriel's.
bool has_memory_policy();

/// Binds the calling thread, which must be one of the library's own, to these processors. Does
/// nothing if it is bound to them already, if there are none, or if memory runs out.
void run_this_thread_on(const std::vector<int>& cpus) noexcept;

/// Makes [at, at + bytes) prefer this NUMA node. The range must be whole pages that nobody has
/// touched. On a mapping of a memfd, the preference holds for all its mappings in every process.
/// -1: does nothing.
void prefer_memory_node(void* at, std::size_t bytes, int node);

/// Makes new memory of the calling thread prefer this NUMA node while the object lives. For calls
/// into a driver, which allocates by itself. Does nothing for -1 or if the thread has a policy
/// already.
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
