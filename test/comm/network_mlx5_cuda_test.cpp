// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "base/cuda_table.hpp"
#include "comm/adapter_players.hpp"
#include "comm/network_faults.hpp"
#include "comm/network_players.hpp"
#include "comm/on_model.hpp"
#include "support/fault_cuda.hpp"

/// GPU ranks of several nodes whose queues mlx5 adapters execute (3.11, 3.15): on the models of the
/// driver and of verbs, where what
/// kernels would do the ranks' threads do in the model's memory.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
using device::Thread;

constexpr Thread kThread;

/// What an adapter needs of the driver, over its model.
class AdapterDriver {
 public:
  AdapterDriver() {
    model() = cuda();
    table_ = cuda();
    table_.device_get_attribute = [](int* value, CUdevice_attribute which, CUdevice device) {
      if (which == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) {
        *value = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES;
        return CUDA_SUCCESS;
      }
      *value = 1;
      const bool is_there = which == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED ||
                            which == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED;
      return is_there ? CUDA_SUCCESS : model().device_get_attribute(value, which, device);
    };
    table_.pointer_set_attribute = [](const void*, CUpointer_attribute, CUdeviceptr) {
      return CUDA_SUCCESS;
    };
    table_.mem_get_handle_for_address_range = [](void* out, CUdeviceptr, std::size_t,
                                                 CUmemRangeHandleType, unsigned long long) {
      *static_cast<int*>(out) = ::dup(0);
      return CUDA_SUCCESS;
    };
    scoped_.emplace(table_);
  }

 private:
  static CudaTable& model() {
    static CudaTable table;
    return table;
  }
  CudaTable table_;
  std::optional<ScopedCudaTable> scoped_;
};

/// Plays with a GPU for each rank.
void play_on_gpus(const std::vector<int>& nodes, const AdapterBody& body) {
  const auto ranks = static_cast<int>(nodes.size());
  play_on_adapters(nodes, {}, {{"ORIEL_BACKEND", "cuda"}}, [&](Players& players, Adapter& adapter) {
    const OnModel on_model(ranks, players.first());
    // As long as the process: threads of the library may call it to the end.
    static auto* const driver = new AdapterDriver;
    static_cast<void>(driver);
    body(players, adapter);
  });
}

}  // namespace

TEST_CASE("3.11 3.15 puts, gets and signals of GPUs by queues of adapters, byte by byte") {
  const std::uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  for (const std::vector<int>& nodes : {std::vector{0, 1}, std::vector{0, 0, 1}}) {
    play_on_gpus(nodes, [&](Players& players, Adapter&) { Traffic(players, seed).run(25); });
  }
}

TEST_CASE("3.6 3.11 what a GPU's kernels post after an abort reaches no peer") {
  play_on_gpus({0, 1}, [](Players& players, Adapter&) {
    Rank rank(players, 4096, kWorld);
    const auto window = rank.window.view();
    rank.sync("the first barrier");
    players.barrier();  // nobody is in the other one any more
    if (players.first() == 0) {
      *rank.at(8) = 77;
      rank.comm.abort();
      static_cast<void>(device::world_put(kThread, rank.view(), 1, window, 0, window, 8, 1));
      static_cast<void>(device::world_signal(kThread, rank.view(), 1, 0));
      test::require(device::world_flush(kThread, rank.view()) != device::WorldOutcome::done,
                    "it was done");
    }
    players.barrier();
    std::this_thread::sleep_for(20ms);
    test::require(*rank.at(0) == 0 && device::read_signal(rank.view(), 0) == 0, "something came");
    players.barrier();
  });
}

TEST_CASE("3.11 an adapter's error on a queue of a GPU names the peer, opcode and syndrome") {
  play_on_gpus({0, 1}, [](Players& players, Adapter& adapter) {
    Rank rank(players, 4096, kWorld);
    const auto window = rank.window.view();
    rank.sync("the first barrier");
    players.barrier();
    if (players.first() == 0) {
      net::NicFaults faults;
      faults.fails.push_back({.syndrome = net::Syndrome::transport_retry});
      adapter.nic().set_faults(faults);
      const auto posted = device::world_put(kThread, rank.view(), 1, window, 0, window, 8, 1);
      require(posted.outcome, "posting");
    }
    const auto error = error_of(rank.comm);
    test::require(error && error->origin_rank() == 1, error ? error->to_string() : "no error");
    for (const char* word : {"rank 0 to rank 1", "did not answer", "0x15", "operation 0x08"}) {
      test::require(error->to_string().find(word) != std::string::npos, error->to_string());
    }
    players.barrier();
  });
}

TEST_CASE(
    "3.11 when a call of the driver fails while queues of GPUs are made, both ranks know it") {
  const long seed = static_cast<long>(std::random_device{}() >> 1);
  INFO("seed " << seed);
  play_on_gpus({0, 1}, [&](Players& players, Adapter& adapter) {
    const CudaFaultHooks hooks;
    constexpr long kStride = 3;
    int errors = 0;
    for (long k = 1 + seed % kStride, misses = 0; misses < 2; k += kStride) {
      const bool is_victim = players.first() == 0;
      FaultPlan plan;
      plan.fail_at = k;
      plan.status = CUDA_ERROR_OUT_OF_MEMORY;
      std::optional<ScopedCudaFaults> faults;
      const Seen seen = live(
          players,
          [&] {
            // What comes before the network others walk over.
            adapter.verbs.on_list = [&] {
              if (is_victim) faults.emplace(plan);
            };
          },
          [&] { faults.reset(); });
      if (is_victim) players.word(kHitIn) = plan.hit() ? 1 : 0;
      test::require(agree(players, seen, 0), "call " + std::to_string(k) + ": " + seen.text);
      adapter.verbs.on_list = nullptr;
      adapter.require_clean();
      misses = players.word(kHitIn) != 0 ? 0 : misses + 1;
      errors += seen.ok ? 0 : 1;
      players.barrier();
    }
    test::require(errors > 3, "errors: " + std::to_string(errors));
  });
}

}  // namespace oriel::test
