// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/settings.hpp"
#include "topo/choice/affinity.hpp"

/// Applies affinity.hpp to the calling thread and the settings cpu_affinity and
/// ignore_cpu_affinity. Respects memory policies, such as numactl's. Never fails: a preference that
/// needs an unknown fact is left out.
namespace oriel::topo {

/// Returns the affinity of a rank that computes on the calling thread's processors.
Affinity local_affinity_of_processors(const Machine& machine, const Settings& settings);

/// Returns the affinity of a rank on a GPU, given by its index in Machine::gpus. If the thread may
/// use no processor near the GPU, this is logged once per process.
Affinity local_affinity_of_gpu(const Machine& machine, int gpu, const Settings& settings);

/// Returns the affinity for the machine of process_machine() and the settings of this process. The
/// machine is read once; later calls cost a few system calls.
Affinity own_affinity_of_processors();
/// Returns the affinity for the GPU with this CUDA ordinal.
Affinity own_affinity_of_gpu(int ordinal);

}  // namespace oriel::topo
