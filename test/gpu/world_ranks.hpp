// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "api/api_ranks.hpp"
#include "gpu/gpu_ranks.hpp"
#include "gpu/world_gpu.hpp"

/// Ranks whose kernels communicate with ranks of other nodes.
namespace oriel::test {

/// Pinned host memory that kernels write.
template <class T>
class Pinned {
 public:
  explicit Pinned(std::size_t count = 1) {
    void* made = nullptr;
    require_cuda(cudaHostAlloc(&made, count * sizeof(T), cudaHostAllocDefault), "cudaHostAlloc");
    words_ = static_cast<T*>(made);
    std::fill_n(words_, count, T{});
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  T* get() const { return words_; }
  T* operator->() const { return words_; }

 private:
  T* words_ = nullptr;  // freed when the process exits
};

struct WorldRank {
  WorldRank(TestRanks& test_ranks, std::size_t bytes)
      : gpu(test_ranks.first()),
        comm(join(test_ranks)),
        kernels(must(comm.device_comm({.barrier_slots = 1, .world = true, .signals = 8}))),
        memory(must(comm.allocate(bytes))),
        window(must(comm.register_window(memory))) {
    require_cuda(static_cast<cudaError_t>(load_world_kernels()), "loading kernels");
  }
  void check(const WorldResult& result, const char* what) const {
    const auto outcome = static_cast<device::WorldOutcome>(result.outcome);
    const auto error = comm.async_error();
    require(outcome == device::WorldOutcome::done,
            std::string(what) + " ended in step " + std::to_string(result.step) + ": " +
                device::to_string(outcome) + (error ? "; " + error->to_string() : ""));
    require(result.wrong == 0, std::to_string(result.wrong) + " wrong bytes");
  }
  RankGpu gpu;
  Communicator comm;
  DeviceComm kernels;
  oriel::Buffer memory;
  Window window;
};

}  // namespace oriel::test
