// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "base/cuda_table.hpp"
#include "comm/support/adapter_ranks.hpp"
#include "comm/support/network_faults.hpp"
#include "comm/support/network_ranks.hpp"
#include "comm/support/on_model.hpp"
#include "net/support/nic_faults.hpp"
#include "shadow/shadow_pool_cuda.hpp"
#include "support/cuda/fault_cuda.hpp"
#include "support/seed.hpp"
#include "window/memory/framework_memory.hpp"

/// GPU ranks of several nodes whose queues are executed by mlx5 adapters (3.2, 3.11, 3.15). Runs on
/// the models of the driver and of verbs. The ranks' threads act for the kernels, in the model's
/// memory.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

/// Extends the driver model by the functions that an adapter needs.
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
    table_.mem_get_handle_for_address_range = [](void* out, CUdeviceptr begin, std::size_t bytes,
                                                 CUmemRangeHandleType, unsigned long long) {
      CUdeviceptr base = 0;
      std::size_t size = 0;
      const bool is_known = model().mem_get_address_range(&base, &size, begin) == CUDA_SUCCESS;
      // A dma-buf covers one allocation only.
      if (is_known && begin + bytes > base + size) return CUDA_ERROR_INVALID_VALUE;
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

/// Runs ranks with one GPU each.
void run_on_gpus(const std::vector<int>& nodes, const AdapterBody& body) {
  const auto ranks = static_cast<int>(nodes.size());
  run_on_adapters(nodes, {}, {{"ORIEL_BACKEND", "cuda"}},
                  [&](TestRanks& test_ranks, Adapter& adapter) {
                    const OnModel on_model(ranks, test_ranks.first());
                    // Never destroyed, because threads of the library may call the table until the
                    // process ends.
                    static auto* const driver = new AdapterDriver;
                    static_cast<void>(driver);
                    body(test_ranks, adapter);
                  });
}

}  // namespace

TEST_CASE("random puts, gets and signals of GPUs through adapters move the right bytes",
          "[req:3.11][req:3.15]") {
  const std::uint64_t seed = test_seed();
  run_on_gpus({0, 0, 1},
              [&](TestRanks& test_ranks, Adapter&) { Traffic(test_ranks, seed).run(25); });
}

TEST_CASE("operations that kernels post to an mlx5 queue after an abort reach no peer",
          "[req:3.6][req:3.11]") {
  run_on_gpus({0, 1}, [](TestRanks& test_ranks, Adapter&) {
    Rank rank(test_ranks, 4096, kWorld);
    const auto window = rank.window.view();
    rank.sync("the first barrier");
    test_ranks.barrier();  // no rank is still in the first barrier
    if (test_ranks.first() == 0) {
      *rank.at(8) = 77;
      rank.comm.abort();
      static_cast<void>(device::world_put(kThread, rank.view(), 1, window, 0, window, 8, 1));
      static_cast<void>(device::world_signal(kThread, rank.view(), 1, 0));
      test::require(device::world_flush(kThread, rank.view()) != device::WorldOutcome::done,
                    "it was done");
    }
    test_ranks.barrier();
    std::this_thread::sleep_for(20ms);
    test::require(*rank.at(0) == 0 && device::read_signal(rank.view(), 0) == 0, "something came");
    test_ranks.barrier();
  });
}

TEST_CASE("an adapter's error on a queue of a GPU names the peer, opcode and syndrome",
          "[req:3.11]") {
  run_on_gpus({0, 1}, [](TestRanks& test_ranks, Adapter& adapter) {
    Rank rank(test_ranks, 4096, kWorld);
    const auto window = rank.window.view();
    rank.sync("the first barrier");
    test_ranks.barrier();
    if (test_ranks.first() == 0) {
      net::test::NicFaults faults;
      faults.fails.push_back({.syndrome = net::Syndrome::transport_retry});
      net::test::set_faults(adapter.nic(), faults);
      const auto posted = device::world_put(kThread, rank.view(), 1, window, 0, window, 8, 1);
      require(posted.outcome, "posting");
    }
    const auto error = error_of(rank.comm);
    test::require(error && error->origin_rank() == 1, error ? error->to_string() : "no error");
    require_words(error->to_string(),
                  {"rank 0 to rank 1", "did not answer", "0x15", "operation 0x08"});
    test_ranks.barrier();
  });
}

TEST_CASE("when a call of the driver fails as adapters' queues are made, both ranks know it",
          "[req:3.11]") {
  const std::uint64_t seed = test_seed();
  INFO("seed " << seed);
  run_on_gpus({0, 1}, [&](TestRanks& test_ranks, Adapter& adapter) {
    const CudaFaultHooks hooks;
    constexpr long kStride = 3;
    int errors = 0;
    for (long k = 1 + static_cast<long>(seed % kStride), misses = 0; misses < 2; k += kStride) {
      const bool is_victim = test_ranks.first() == 0;
      FaultPlan plan;
      plan.fail_at = k;
      plan.status = CUDA_ERROR_OUT_OF_MEMORY;
      std::optional<ScopedCudaFaults> faults;
      const auto [seen, agreed, was_hit] = start_with_faults(
          test_ranks, 0,
          [&] {
            // Starts when the rank looks for adapters. Other tests cover earlier driver calls.
            adapter.verbs.on_list = [&] {
              if (is_victim) faults.emplace(plan);
            };
          },
          [&] { faults.reset(); }, [&] { return plan.hit(); });
      test::require(agreed, "call " + std::to_string(k) + ": " + seen.text);
      adapter.verbs.on_list = nullptr;
      adapter.require_clean();
      misses = was_hit ? 0 : misses + 1;
      errors += seen.ok ? 0 : 1;
      test_ranks.barrier();
    }
    test::require(errors > 3, "errors: " + std::to_string(errors));
  });
}

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// A window over part of several allocations of `sizes` MiB, mapped back to back.
struct Layout {
  std::vector<std::size_t> sizes;
  std::size_t begin = 0;
  std::size_t bytes = 0;

  std::vector<std::size_t> allocations() const {
    std::vector<std::size_t> made;
    for (const std::size_t size : sizes) made.push_back(size * kMiB);
    return made;
  }
  /// Returns the offsets in the window at which allocations end.
  std::vector<std::size_t> ends() const {
    std::vector<std::size_t> made;
    std::size_t end = 0;
    for (const std::size_t size : allocations()) {
      end += size;
      if (end > begin && end < begin + bytes) made.push_back(end - begin);
    }
    return made;
  }
};

/// Returns a rank's layout. Windows of odd ranks span ten allocations, and need more chunks than a
/// region has keys. Windows of even ranks span three allocations, in longer chunks.
Layout layout_of(int rank) {
  constexpr std::size_t kBytes = 21 * kMiB + 4321;
  if (rank % 2 == 0) return {{4, 12, 8}, 2 * kMiB + 12'288, kBytes};
  return {{2, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2}, 12'288, kBytes};
}

/// Memory of a rank's GPU with that layout.
class Pieces {
 public:
  explicit Pieces(int rank)
      : layout_(layout_of(rank)),
        framework_(layout_.allocations(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                   {CU_MEM_LOCATION_TYPE_DEVICE, {rank}}) {}
  std::uint8_t* at(std::size_t offset) const {
    return reinterpret_cast<std::uint8_t*>(framework_.base()) + layout_.begin + offset;
  }
  std::size_t bytes() const { return layout_.bytes; }
  MemoryRange range() const { return {at(0), bytes()}; }
  std::size_t count() const { return layout_.ends().size() + 1; }

 private:
  const Layout layout_;
  const Framework framework_;
};

/// Ranks with a window over several allocations each. One rank at a time puts and gets, and knows
/// the expected value of every byte of all windows.
class Crossings {
 public:
  Crossings(TestRanks& test_ranks, Communicator& comm, const Pieces& mine, std::uint64_t seed)
      : test_ranks_(test_ranks),
        mine_(mine),
        window_(must(comm.register_window(mine.range()))),
        kernels_(must(comm.device_comm(kWorld))),
        random_(seed) {}
  device::WindowView view() const { return window_.view(); }
  void close() { must(window_.close()); }

  /// Prepares a rank's turn: resets the expected bytes and this rank's window.
  void begin() {
    images_.clear();
    for (int rank = 0; rank < test_ranks_.size(); ++rank) {
      auto& image = images_.emplace_back(mine_.bytes());
      for (std::size_t i = 0; i < image.size(); ++i) image[i] = pattern(rank, 1, i);
    }
    std::copy(own().begin(), own().end(), mine_.at(0));
    test_ranks_.barrier();
  }
  void put_to(int peer, int step) {
    const std::size_t bytes = random_bytes();
    const std::size_t near = across(test_ranks_.first(), bytes), far = across(peer, bytes);
    for (std::size_t i = near; i < near + bytes; ++i) {
      *mine_.at(i) = own()[i] = pattern(7, static_cast<std::uint64_t>(step), i);
    }
    std::copy_n(mine_.at(near), bytes, image_of(peer).data() + far);
    const auto posted = device::world_put_signal(kThread, kernels_.view(), peer, view(), far,
                                                 view(), near, bytes, kSignal, 1);
    require(device::world_wait(kThread, kernels_.view(), posted), "a put");
  }
  void get_from(int peer) {
    const std::size_t bytes = random_bytes();
    get(peer, across(peer, bytes), across(test_ranks_.first(), bytes), bytes);
  }
  /// Reads a peer's whole window into this rank's window.
  void get_all(int peer) { get(peer, 0, 0, mine_.bytes()); }
  void await_signals(int from, std::uint64_t count) {
    require(device::wait_signal(kThread, kernels_.view(), kSignal, count, from), "the signals");
    test::require(device::read_signal(kernels_.view(), kSignal) == count, "no more signals");
  }

 private:
  static constexpr std::uint32_t kSignal = 3;
  std::vector<std::uint8_t>& image_of(int rank) { return images_[static_cast<std::size_t>(rank)]; }
  std::vector<std::uint8_t>& own() { return image_of(test_ranks_.first()); }
  /// Draws a size: inline in one WQE, medium, or over several allocations.
  std::size_t random_bytes() {
    const auto kind = random_() % 8;
    if (kind == 0) return 5 * kMiB + random_() % kMiB;
    return kind < 4 ? 2 + random_() % 27 : 29 + random_() % 5000;
  }
  /// Returns an offset at which `bytes` bytes cross the end of one of the rank's allocations.
  std::size_t across(int rank, std::size_t bytes) {
    const std::vector<std::size_t> ends = layout_of(rank).ends();
    const std::size_t end = ends[random_() % ends.size()];
    const std::size_t before = std::min(end, 1 + random_() % (bytes - 1));
    return std::min(end - before, mine_.bytes() - bytes);
  }
  void get(int peer, std::size_t far, std::size_t near, std::size_t bytes) {
    const auto posted =
        device::world_get(kThread, kernels_.view(), peer, view(), far, view(), near, bytes);
    require(device::world_wait(kThread, kernels_.view(), posted), "a get");
    std::copy_n(image_of(peer).data() + far, bytes, own().data() + near);
    const auto wrong = std::mismatch(own().begin(), own().end(), mine_.at(0));
    test::require(wrong.first == own().end(),
                  "what was read, at " + std::to_string(wrong.first - own().begin()));
  }

  TestRanks& test_ranks_;
  const Pieces& mine_;
  Window window_;
  DeviceComm kernels_;
  std::mt19937_64 random_;
  std::vector<std::vector<std::uint8_t>> images_;  // expected bytes of all ranks' windows
};

/// Returns the pool of key tables, in memory that kernels read, for keys that do not fit a region.
std::shared_ptr<shadow::ShadowPool> pool_of_keys(int device) {
  return must(shadow::cuda_pool(device, 256, 64));
}

}  // namespace

TEST_CASE("transfers across borders of a window's allocations move the right bytes", "[req:3.2]") {
  const std::uint64_t seed = test_seed();
  const std::vector<int> nodes{0, 0, 1};
  run_on_gpus(nodes, [&](TestRanks& test_ranks, Adapter& adapter) {
    constexpr int kSteps = 12;
    const int me = test_ranks.first();
    const auto is_far = [&](int peer) {
      return nodes[static_cast<std::size_t>(peer)] != nodes[static_cast<std::size_t>(me)];
    };
    auto comm = join(test_ranks);
    const Pieces memory(me);
    const std::size_t regions = adapter.verbs.live("region");
    test_ranks.barrier();
    Crossings crossings(test_ranks, comm, memory, seed + static_cast<std::uint64_t>(me));
    const device::queue::Region& local = crossings.view().network->local;
    test::require(local.chunk_shift == (me % 2 == 0 ? 22 : 21), "the size of its chunks");
    test::require((local.more_keys != nullptr) == (me % 2 == 1), "keys outside of the region");
    // The device communicator has its own window, and so one more region.
    test::require(adapter.verbs.live("region") == regions + memory.count() + 1, "its regions");
    std::uint64_t signals = 0;
    for (int turn = 0; turn < test_ranks.size(); ++turn) {
      test_ranks.barrier();
      crossings.begin();
      for (int peer = 0; turn == me && peer < test_ranks.size(); ++peer) {
        if (!is_far(peer)) continue;
        for (int step = 0; step < kSteps; ++step) {
          crossings.put_to(peer, step);
          crossings.get_from(peer);
        }
        crossings.get_all(peer);
      }
      if (is_far(turn)) crossings.await_signals(turn, signals += kSteps);
    }
    test_ranks.barrier();
    const auto pool = pool_of_keys(me);
    const bool had_table = pool->find(local.more_keys) != nullptr;
    const auto* const keys = local.more_keys;
    crossings.close();
    test_ranks.barrier();
    test::require(had_table == (me % 2 == 1), "a table of its own keys");
    test::require(pool->find(keys) == nullptr, "which has gone");
    test::require(adapter.verbs.live("region") == regions + 1, "and so have its regions");
    test_ranks.barrier();
  });
}

TEST_CASE("when one allocation of a window cannot be registered nobody has the window",
          "[req:3.2]") {
  run_on_gpus({0, 1}, [](TestRanks& test_ranks, Adapter& adapter) {
    auto comm = join(test_ranks);
    const int me = test_ranks.first();
    const Pieces memory(me);
    const std::size_t regions = adapter.verbs.live("region");
    test_ranks.barrier();
    auto good = must(comm.register_window(memory.range()));
    test_ranks.barrier();
    test::require(adapter.verbs.live("region") == regions + memory.count(), "its regions");
    test_ranks.barrier();
    must(good.close());
    test_ranks.barrier();
    // Holds the pool, as each table does, to count the tables.
    const auto pool = pool_of_keys(me);
    const long holders = pool.use_count();
    for (int victim = 0; victim < 2; ++victim) {
      const std::size_t count = layout_of(victim).ends().size() + 1;
      for (std::size_t k = 1; k <= count; ++k) {
        test_ranks.barrier();
        adapter.verbs.counted = 0;
        adapter.verbs.fail_at = me == victim ? static_cast<long>(k) : 0;
        const auto window = comm.register_window(memory.range());
        adapter.verbs.fail_at = 0;
        test::require(!window.ok() && window.error().origin_rank() == victim, "who has failed");
        require_words(window.error().to_string(),
                      {fmt::format("allocation {} of {}", k, count), "ibv_reg_dmabuf_mr"});
        test::require(adapter.verbs.live("region") == regions, "regions are left");
        test::require(pool.use_count() == holders, "tables are left");
      }
    }
    test_ranks.barrier();
  });
}

}  // namespace oriel::test
