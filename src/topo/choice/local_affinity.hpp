// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/settings.hpp"
#include "topo/choice/affinity.hpp"

/// What affinity.hpp says of what the calling thread may use and of the user's wishes: the settings
/// cpu_affinity and ignore_cpu_affinity, and memory policies as numactl sets them, which are left
/// alone. Never fails: what is not known has no affinity.
namespace oriel::topo {

/// For a rank that computes on the calling thread's processors.
Affinity local_affinity_of_processors(const Machine& machine, const Settings& settings);

/// For a rank on a GPU, which is an entry of Machine::gpus. That the thread may use no processor
/// near it is logged once per process.
Affinity local_affinity_of_gpu(const Machine& machine, int gpu, const Settings& settings);

/// The same on the machine that process_machine() knows, by the settings of this process. It is
/// looked at once; after that a call costs a few system calls.
Affinity own_affinity_of_processors();
/// For the GPU with this CUDA ordinal.
Affinity own_affinity_of_gpu(int ordinal);

}  // namespace oriel::topo
