// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "net/mlx5/mlx5_fixture.hpp"
#include "net/mlx5/mlx5_memory_cuda.hpp"
#include "net/queue/memory_keys.hpp"
#include "support/cuda/checked_cuda.hpp"
#include "support/cuda/fault_cuda.hpp"
#include "support/log_setup.hpp"
#include "support/process_state.hpp"

// Queues in the memory of a GPU (3.11), on models of the driver and of verbs.

using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;

namespace {

namespace dq = device::queue;

/// Driver model with the additional calls that an adapter needs.
struct Driver {
  static inline Driver* driver = nullptr;
  oriel::test::CheckedCuda model;
  CudaTable table = cuda();
  const CudaTable of_model = cuda();
  std::map<void*, unsigned> registered;  // address and flags
  bool takes_registers = true;
  bool has_dmabuf = true;
  CUresult export_status = CUDA_SUCCESS;
  int ordering = 100;
  int reached = 1;
  std::vector<std::pair<CUdeviceptr, std::size_t>> exported;
  int prepared = 0;
  std::unique_ptr<ScopedCudaTable> scoped;

  Driver() {
    driver = this;
    table.device_get_attribute = [](int* value, CUdevice_attribute which, CUdevice) {
      *value = 1;
      if (which == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) *value = driver->has_dmabuf ? 1 : 0;
      if (which == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) *value = driver->reached;
      if (which == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) *value = driver->ordering;
      return CUDA_SUCCESS;
    };
    table.mem_host_register = [](void* address, std::size_t bytes, unsigned flags) {
      if (!driver->takes_registers) return CUDA_ERROR_NOT_PERMITTED;
      const CUresult status = driver->of_model.mem_host_register(address, bytes, flags);
      if (status == CUDA_SUCCESS) driver->registered.emplace(address, flags);
      return status;
    };
    table.mem_host_unregister = [](void* address) {
      driver->registered.erase(address);
      return driver->of_model.mem_host_unregister(address);
    };
    table.mem_host_get_device_pointer = [](CUdeviceptr* out, void* address, unsigned) {
      *out = reinterpret_cast<CUdeviceptr>(address);
      return CUDA_SUCCESS;
    };
    table.pointer_set_attribute = [](const void* value, CUpointer_attribute which, CUdeviceptr) {
      const bool on = *static_cast<const unsigned*>(value) == 1;
      if (on && which == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) ++driver->prepared;
      return CUDA_SUCCESS;
    };
    table.mem_get_handle_for_address_range = [](void* out, CUdeviceptr begin, std::size_t bytes,
                                                CUmemRangeHandleType, unsigned long long) {
      if (driver->export_status != CUDA_SUCCESS) return driver->export_status;
      driver->exported.emplace_back(begin, bytes);
      *static_cast<int*>(out) = ::dup(0);
      return CUDA_SUCCESS;
    };
    scoped = std::make_unique<ScopedCudaTable>(table);
  }
  ~Driver() {
    scoped.reset();
    driver = nullptr;
  }
};

/// Adapter and GPU; checks when destroyed that nothing is left of them.
struct GpuFixture : Mlx5Fixture {
  Driver driver;
  std::unique_ptr<Mlx5CudaMemory> gpu;
  std::optional<NicMlx5> nic;

  ~GpuFixture() {
    nic.reset();
    gpu.reset();
    CHECK(verbs.violations.empty());
    CHECK(verbs.live() == 0);
    CHECK(driver.registered.empty());
  }
  /// Opens both, with the driver as set up by the test.
  void begin() {
    gpu = Mlx5CudaMemory::create(0).value();
    nic.emplace(open().value());
    verbs.calls.clear();
  }
  Result<Mlx5Queue> make(const Mlx5Queue::Options& each = {}) {
    auto made = nic->create_queues(*gpu, std::span(&each, 1));
    if (!made.ok()) return std::move(made).error();
    return std::move(made.value()[0]);
  }
};

std::uint64_t address_of(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

}  // namespace

TEST_CASE("a queue in a GPU's memory is registered by dma-buf, and its doorbell mapped there",
          "[req:3.11]") {
  const std::size_t fds = oriel::test::count_fds();
  GpuFixture fixture;
  fixture.begin();
  const Mlx5Queue queue = fixture.make().value();
  const std::vector<std::string> wanted = {"ibv_reg_dmabuf_mr",
                                           "mlx5dv_devx_umem_reg_ex",
                                           "mlx5dv_devx_umem_reg_ex",
                                           "mlx5dv_devx_alloc_uar",
                                           "CREATE_CQ",
                                           "CREATE_QP"};
  CHECK(fixture.verbs.names() == wanted);
  const dq::QueueView& view = queue.view();
  CHECK(address_of(view.ring) % 65536 == 0);
  const auto& ring = fixture.verbs.calls[1].arguments;
  CHECK(ring[0] == 0);      // from the descriptor's beginning
  CHECK(ring[1] == 65536);  // 1024 WQEBBs
  CHECK(ring[3] == ~std::uint64_t{4095});
  CHECK(ring[4] == 1);  // by a descriptor
  const auto& slots = fixture.verbs.calls[0].arguments;
  CHECK(slots[0] == 0);
  CHECK(slots[2] == address_of(view.fetch_values));
  REQUIRE(fixture.driver.exported.size() == 3);
  CHECK(fixture.driver.exported[1] ==
        std::pair(CUdeviceptr{address_of(view.ring)}, std::size_t{65536}));
  for (const auto& [begin, bytes] : fixture.driver.exported) {
    CHECK(begin % 4096 == 0);
    CHECK(bytes % 4096 == 0);
  }
  // Flags 7: portable, mapped, I/O memory.
  REQUIRE(fixture.driver.registered.size() == 1);
  CHECK(fixture.driver.registered.begin()->first == view.doorbell);
  CHECK(fixture.driver.registered.begin()->second == 7);
  CHECK_FALSE(queue.is_rung_by_processor());
  CHECK(fixture.driver.prepared == 2);
  CHECK_FALSE(view.gets_need_dump);
  // The initial image was copied to the GPU.
  CHECK(view.completion->tail == ~std::uint64_t{0});
  CHECK(view.indexes->reserved == 0);
  CHECK(view.fetch_turns[5] == 5);
  CHECK(oriel::test::count_fds() == fds);
  // A GPU's page has 64 KiB, so 2^4 of the adapter's pages.
  CHECK(fixture.verbs.find("CREATE_CQ")->command[40] == std::byte{4});
}

TEST_CASE("receives of a queue in a GPU's memory lie there, with all that kernels touch",
          "[B4][req:3.11]") {
  GpuFixture fixture;
  fixture.begin();
  Mlx5Queue queue = fixture.make({.receives = 256}).value();
  const dq::QueueView& view = queue.view();
  const dq::ReceiveView& receives = queue.receives();
  // 256 receives and 1024 WQEBBs take two pages of a GPU; completions of receives take one.
  REQUIRE(fixture.driver.exported.size() == 4);
  CHECK(fixture.driver.exported[1] ==
        std::pair(CUdeviceptr{address_of(view.ring) - 4096}, std::size_t{131072}));
  CHECK(fixture.driver.exported[3] ==
        std::pair(CUdeviceptr{address_of(receives.completions)}, std::size_t{65536}));
  CHECK(address_of(receives.completions) % 65536 == 0);
  CHECK(fixture.verbs.find("CREATE_CQ", 1)->command[40] == std::byte{4});
  Mlx5QueueHandle peer = queue.handle();
  peer.number = 0x654321;
  REQUIRE(queue.connect(peer).ok());
  CHECK(dq::big_endian(*receives.record) == 256);
}

TEST_CASE("queues of an adapter share its uncached doorbell register, and GPUs ring all of them",
          "[req:3.11][A3]") {
  GpuFixture fixture;
  fixture.begin();
  std::vector<Mlx5Queue> queues;
  for (int i = 0; i < 3; ++i) queues.push_back(fixture.make().value());
  CHECK(fixture.verbs.live("uar") == 1);
  CHECK(fixture.driver.registered.size() == 1);
  for (const Mlx5Queue& queue : queues) {
    CHECK_FALSE(queue.is_rung_by_processor());
    CHECK(queue.view().doorbell == queues[0].view().doorbell);
  }
  // The driver maps no page twice.
  const auto again = fixture.gpu->map_register(queues[0].view().doorbell + 1, 8, false);
  REQUIRE_FALSE(again.ok());
  CHECK(again.error().native().value == 712);
  queues.erase(queues.begin(), queues.begin() + 2);
  CHECK(fixture.driver.registered.size() == 1);
  queues.clear();
  CHECK(fixture.driver.registered.empty());
  CHECK(fixture.verbs.live("uar") == 0);
  CHECK_FALSE(fixture.make().value().is_rung_by_processor());
}

TEST_CASE("without dma-buf the adapter is given addresses, for peer memory", "[req:3.11]") {
  GpuFixture fixture;
  fixture.driver.has_dmabuf = GENERATE(false, true);
  fixture.driver.export_status = CUDA_ERROR_NOT_SUPPORTED;
  fixture.driver.ordering = 0;
  fixture.begin();
  const Mlx5Queue queue = fixture.make().value();
  CHECK(queue.view().gets_need_dump);
  const auto* umem = fixture.verbs.find("mlx5dv_devx_umem_reg");
  REQUIRE(umem != nullptr);
  CHECK(umem->arguments[0] == address_of(queue.view().ring));
  CHECK(fixture.verbs.find("ibv_reg_mr") != nullptr);
  const auto& pair = fixture.verbs.queue_pairs.at(queue.number());
  CHECK(address_of(pair.completions) == address_of(queue.view().completion));
  CHECK(pair.record + 1 == queue.view().doorbell_record);
}

TEST_CASE("where the GPU cannot ring, a processor does, and the log says so once",
          "[req:3.11][A3]") {
  const oriel::test::LogSetup log("warn");
  GpuFixture fixture;
  fixture.driver.takes_registers = false;
  fixture.begin();
  const Mlx5Queue first = fixture.make().value(), second = fixture.make().value();
  CHECK(first.is_rung_by_processor());
  CHECK(first.view().doorbell != second.view().doorbell);
  const auto& pair = fixture.verbs.queue_pairs.at(first.number());
  CHECK(pair.doorbell != first.view().doorbell);
  // The NIC's thread may ring before this one.
  const auto is_rung = [&](const std::uint64_t* doorbell, std::uint64_t value) {
    for (int i = 0; i < 5000 && *static_cast<const volatile std::uint64_t*>(doorbell) != value;
         ++i) {
      if (!fixture.nic->progress()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return *static_cast<const volatile std::uint64_t*>(doorbell) == value;
  };
  *first.view().doorbell = 0x1234;
  CHECK(is_rung(pair.doorbell, 0x1234));
  *second.view().doorbell = 0x5678;
  CHECK(is_rung(fixture.verbs.queue_pairs.at(second.number()).doorbell, 0x5678));
  CHECK(log.count("a processor rings the doorbells of mlx5_0 port 1") == 1);
}

TEST_CASE("the user chooses who rings: the GPU or an error, or a processor anyway",
          "[req:3.11][A3]") {
  const oriel::test::LogSetup log("warn");
  GpuFixture fixture;
  fixture.begin();
  CHECK(fixture.make({.doorbell = DoorbellChoice::cpu}).value().is_rung_by_processor());
  const Mlx5Queue::Options by_gpu{.doorbell = DoorbellChoice::gpu};
  CHECK_FALSE(fixture.make(by_gpu).value().is_rung_by_processor());
  fixture.driver.takes_registers = false;
  const auto refused = fixture.make(by_gpu);
  REQUIRE_FALSE(refused.ok());
  const std::string text = refused.error().to_string();
  INFO(text);
  CHECK(text.find("ORIEL_DOORBELL=gpu") != std::string::npos);
  CHECK(text.find("doorbell register of mlx5_0 port 1") != std::string::npos);
  CHECK(text.find("PeerMappingOverride") != std::string::npos);
  CHECK(log.count("a processor rings") == 0);
}

TEST_CASE("with ring_on_host the ring is registered as host memory, fetched words by dma-buf",
          "[req:3.11]") {
  GpuFixture fixture;
  fixture.begin();
  const Mlx5Queue queue = fixture.make({.ring_on_host = true}).value();
  CHECK(fixture.verbs.find("ibv_reg_dmabuf_mr") != nullptr);
  CHECK(fixture.verbs.find("mlx5dv_devx_umem_reg_ex") == nullptr);
  CHECK(fixture.verbs.find("mlx5dv_devx_umem_reg")->arguments[0] == address_of(queue.view().ring));
  CHECK(fixture.verbs.find("CREATE_CQ")->command[40] == std::byte{0});
}

TEST_CASE("a queue is added while a kernel fills the GPU and a graph is being captured",
          "[req:3.11][B1]") {
  GpuFixture fixture;
  fixture.begin();
  fixture.driver.model.fill_devices(true);
  fixture.driver.model.begin_foreign_capture();
  const auto made = fixture.make();
  fixture.driver.model.end_foreign_capture();
  fixture.driver.model.fill_devices(false);
  CHECK(made.ok());
}

TEST_CASE("memory of a GPU is registered by pages around it", "[req:3.11]") {
  GpuFixture fixture;
  fixture.begin();
  void* window = reinterpret_cast<void*>(0x7000123450);
  const auto add = [&] {
    return fixture.nic->register_memory(*fixture.gpu, window, 10000, kLocalWrite | kRemoteWrite);
  };
  const Mlx5Region region = add().value();
  CHECK(region.lkey() != 0);
  REQUIRE(fixture.driver.exported.size() == 1);
  CHECK(fixture.driver.exported[0] == std::pair(CUdeviceptr{0x7000123000}, std::size_t{12288}));
  const auto& arguments = fixture.verbs.find("ibv_reg_dmabuf_mr")->arguments;
  CHECK(arguments[0] == 0x450);
  CHECK(arguments[1] == 10000);
  CHECK(arguments[2] == 0x7000123450);
  fixture.driver.export_status = CUDA_ERROR_INVALID_VALUE;
  const auto refused = add();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().native().domain == NativeDomain::cuda_driver);
}

TEST_CASE("a GPU that adapters cannot reach is refused", "[req:3.11]") {
  GpuFixture fixture;
  fixture.driver.reached = 0;
  const auto memory = Mlx5CudaMemory::create(0);
  REQUIRE_FALSE(memory.ok());
  CHECK(memory.error().to_string().find("GPU 0") != std::string::npos);
}

TEST_CASE("any failed driver call while an mlx5 queue is created for a GPU is undone",
          "[req:3.12]") {
  const std::size_t fds = oriel::test::count_fds();
  const bool on_host = GENERATE(false, true);
  long k = 1;
  for (bool hit = true; hit; ++k) {
    INFO(k);
    GpuFixture fixture;
    const oriel::test::CudaFaultHooks hooks;
    oriel::test::FaultPlan plan;
    plan.fail_at = k;
    plan.status = CUDA_ERROR_UNKNOWN;
    const oriel::test::ScopedCudaFaults faults(plan);
    auto memory = Mlx5CudaMemory::create(0);
    bool good = false;
    if (memory.ok()) {
      fixture.gpu = std::move(memory).value();
      fixture.nic.emplace(fixture.open().value());
      good = fixture.make({.ring_on_host = on_host, .receives = 8}).ok();
      fixture.nic.reset();
      fixture.gpu.reset();
    }
    hit = plan.hit();
    if (!hit) CHECK(good);
  }
  CHECK(k > 30);
  CHECK(oriel::test::count_fds() == fds);
}
