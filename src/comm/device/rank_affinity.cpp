// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/rank_affinity.hpp"

#include <exception>

#include "topo/choice/local_affinity.hpp"
#include "topo/choice/placement.hpp"

namespace oriel::comm {

topo::Affinity affinity_of(const Device& device) {
  return device.backend() == kernels::Backend::host ? topo::own_affinity_of_processors()
                                                    : topo::own_affinity_of_gpu(device.ordinal());
}

void work_near(const Device& device) noexcept {
  // A thread of a CPU rank inherits the processors of the thread that started it.
  if (device.backend() == kernels::Backend::host) return;
  try {
    topo::run_this_thread_on(affinity_of(device).cpus);
  } catch (const std::exception&) {  // out of memory: the work itself reports it
  }
}

}  // namespace oriel::comm
