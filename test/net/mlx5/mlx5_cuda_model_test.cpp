// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "base/log.hpp"
#include "net/mlx5/fake_verbs.hpp"
#include "net/mlx5/mlx5_memory_cuda.hpp"
#include "net/mlx5/nic_mlx5.hpp"
#include "net/queue/memory_keys.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/cuda/fault_cuda.hpp"
#include "support/process_state.hpp"

// Queues in the memory of a GPU (3.11), on models of the driver and of verbs.

using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;

namespace {

namespace dq = device::queue;

/// The driver's model with the calls that an adapter needs over it.
struct Driver {
  static inline Driver* driver = nullptr;
  oriel::test::FakeCuda model;
  CudaTable table = cuda();
  std::map<void*, unsigned> registered;  // with their flags
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
    table.mem_host_register = [](void* address, std::size_t, unsigned flags) {
      if (!driver->takes_registers) return CUDA_ERROR_NOT_PERMITTED;
      const bool is_new = driver->registered.emplace(address, flags).second;
      return is_new ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    };
    table.mem_host_unregister = [](void* address) {
      return driver->registered.erase(address) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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

struct Scene {
  Driver driver;
  FakeVerbs verbs;
  NicMlx5::Options options;
  Scene() {
    options.device.name = "mlx5_0";
    options.device.verbs = &verbs.library;
    options.own_thread = false;
  }
  NicMlx5 open() { return NicMlx5::open(options).value(); }
  static Result<Mlx5Queue> create(NicMlx5& nic, Mlx5Memory& memory, bool ring_on_host = false,
                                  std::uint32_t receives = 0) {
    Mlx5Queue::Options each;
    each.depth = 1024;
    each.ring_on_host = ring_on_host;
    each.receives = receives;
    const std::array all{each};
    auto made = nic.create_queues(memory, all);
    if (!made.ok()) return std::move(made).error();
    return std::move(made.value()[0]);
  }
  void check_nothing_left() {
    CHECK(verbs.violations.empty());
    CHECK(driver.model.violations().empty());
    CHECK(driver.model.held() == oriel::test::FakeCuda::Held{});
    CHECK(driver.registered.empty());
    CHECK(driver.model.context_depth() == 0);
  }
};

std::uint64_t address_of(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

/// The log's lines while it lives.
class LogFile {
 public:
  LogFile() {
    std::array<char, 32> name{"/tmp/oriel-mlx5-XXXXXX"};
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder_ = name.data();
    ::setenv("ORIEL_LOG", "warn", 1);
    ::setenv("ORIEL_LOG_FILE", (folder_ / "log").c_str(), 1);
    reread();
  }
  ~LogFile() {
    ::unsetenv("ORIEL_LOG");
    ::unsetenv("ORIEL_LOG_FILE");
    reread();
    std::filesystem::remove_all(folder_);
  }
  int count(const std::string& part) const {
    std::ifstream in(folder_ / "log");
    int found = 0;
    for (std::string line; std::getline(in, line);) {
      if (line.find(part) != std::string::npos) ++found;
    }
    return found;
  }

 private:
  static void reread() {
    reread_process_settings();
    reread_log_settings();
  }
  std::filesystem::path folder_;
};

}  // namespace

TEST_CASE("a queue in a GPU's memory is registered by dma-buf, and its doorbell mapped there",
          "[req:3.11]") {
  const std::size_t fds = oriel::test::count_fds();
  Scene scene;
  {
    const auto memory = Mlx5CudaMemory::create(0).value();
    NicMlx5 nic = scene.open();
    scene.verbs.calls.clear();
    const Mlx5Queue queue = Scene::create(nic, *memory).value();
    const std::vector<std::string> wanted = {"ibv_reg_dmabuf_mr",
                                             "mlx5dv_devx_umem_reg_ex",
                                             "mlx5dv_devx_umem_reg_ex",
                                             "mlx5dv_devx_alloc_uar",
                                             "CREATE_CQ",
                                             "CREATE_QP"};
    CHECK(scene.verbs.names() == wanted);
    const dq::QueueView& view = queue.view();
    CHECK(address_of(view.ring) % 65536 == 0);
    const auto& ring = scene.verbs.calls[1].arguments;
    CHECK(ring[0] == 0);      // from the descriptor's beginning
    CHECK(ring[1] == 65536);  // 1024 blocks
    CHECK(ring[3] == ~std::uint64_t{4095});
    CHECK(ring[4] == 1);  // by a descriptor
    const auto& slots = scene.verbs.calls[0].arguments;
    CHECK(slots[0] == 0);
    CHECK(slots[2] == address_of(view.fetch_values));
    REQUIRE(scene.driver.exported.size() == 3);
    CHECK(scene.driver.exported[1] ==
          std::pair(CUdeviceptr{address_of(view.ring)}, std::size_t{65536}));
    for (const auto& [begin, bytes] : scene.driver.exported) {
      CHECK(begin % 4096 == 0);
      CHECK(bytes % 4096 == 0);
    }
    // Portable, mapped, of a device's registers.
    REQUIRE(scene.driver.registered.size() == 1);
    CHECK(scene.driver.registered.begin()->first == view.doorbell);
    CHECK(scene.driver.registered.begin()->second == 7);
    CHECK_FALSE(queue.is_rung_by_processor());
    CHECK(scene.driver.prepared == 2);
    CHECK_FALSE(view.gets_need_dump);
    // The image that was copied there.
    CHECK(view.completion->tail == ~std::uint64_t{0});
    CHECK(view.indexes->reserved == 0);
    CHECK(view.fetch_turns[5] == 5);
    CHECK(oriel::test::count_fds() == fds);
    // Pages of a GPU: 64 KiB, so 2^4 of the adapter's.
    CHECK(scene.verbs.find("CREATE_CQ")->command[40] == std::byte{4});
  }
  scene.check_nothing_left();
  CHECK(scene.verbs.live() == 0);
}

TEST_CASE("receives of a queue in a GPU's memory lie there, with all that kernels touch",
          "[B4][req:3.11]") {
  Scene scene;
  {
    const auto memory = Mlx5CudaMemory::create(0).value();
    NicMlx5 nic = scene.open();
    Mlx5Queue queue = Scene::create(nic, *memory, false, 256).value();
    const dq::QueueView& view = queue.view();
    const dq::ReceiveView& receives = queue.receives();
    // 256 receives and 1024 blocks take two pages of a GPU, completions of receives one.
    REQUIRE(scene.driver.exported.size() == 4);
    CHECK(scene.driver.exported[1] ==
          std::pair(CUdeviceptr{address_of(view.ring) - 4096}, std::size_t{131072}));
    CHECK(scene.driver.exported[3] ==
          std::pair(CUdeviceptr{address_of(receives.completions)}, std::size_t{65536}));
    CHECK(address_of(receives.completions) % 65536 == 0);
    CHECK(scene.verbs.find("CREATE_CQ", 1)->command[40] == std::byte{4});
    CHECK(receives.record + 1 == view.doorbell_record);
    CHECK(receives.position->posted == 256);
    CHECK(receives.completions[255].tail == ~std::uint64_t{0});
    // The ring's first entry: no bytes, and the key that ends the list.
    const auto* const entry = reinterpret_cast<const std::uint32_t*>(view.ring) - 1024;
    CHECK(entry[0] == 0);
    CHECK(dq::big_endian(entry[1]) == 0x100);

    Mlx5QueueHandle peer = queue.handle();
    peer.number = 0x654321;
    REQUIRE(queue.connect(peer).ok());
    CHECK(dq::big_endian(*receives.record) == 256);
    CHECK(queue.state().value() == QueueState::ready_to_send);
  }
  scene.check_nothing_left();
  CHECK(scene.verbs.live() == 0);
}

TEST_CASE("queues of an adapter share its uncached doorbell register, and GPUs ring all of them",
          "[req:3.11][A3]") {
  Scene scene;
  {
    const auto memory = Mlx5CudaMemory::create(0).value();
    NicMlx5 nic = scene.open();
    std::vector<Mlx5Queue> queues;
    for (int i = 0; i < 3; ++i) queues.push_back(Scene::create(nic, *memory).value());
    CHECK(scene.verbs.live("uar") == 1);
    CHECK(scene.driver.registered.size() == 1);
    for (const Mlx5Queue& queue : queues) {
      CHECK_FALSE(queue.is_rung_by_processor());
      CHECK(queue.view().doorbell == queues[0].view().doorbell);
    }
    queues.erase(queues.begin(), queues.begin() + 2);
    CHECK(scene.driver.registered.size() == 1);
    queues.clear();
    CHECK(scene.driver.registered.empty());
    CHECK(scene.verbs.live("uar") == 0);
    CHECK_FALSE(Scene::create(nic, *memory).value().is_rung_by_processor());
  }
  scene.check_nothing_left();
}

TEST_CASE("without dma-buf the adapter is given addresses, for peer memory", "[req:3.11]") {
  Scene scene;
  const bool attribute = GENERATE(false, true);
  scene.driver.has_dmabuf = attribute;
  scene.driver.export_status = CUDA_ERROR_NOT_SUPPORTED;
  scene.driver.ordering = 0;
  const auto memory = Mlx5CudaMemory::create(0).value();
  NicMlx5 nic = scene.open();
  const Mlx5Queue queue = Scene::create(nic, *memory).value();
  CHECK(queue.view().gets_need_dump);
  const auto* umem = scene.verbs.find("mlx5dv_devx_umem_reg");
  REQUIRE(umem != nullptr);
  CHECK(umem->arguments[0] == address_of(queue.view().ring));
  CHECK(scene.verbs.find("ibv_reg_mr") != nullptr);
  const auto& pair = scene.verbs.queue_pairs.at(queue.number());
  CHECK(address_of(pair.completions) == address_of(queue.view().completion));
  CHECK(pair.record + 1 == queue.view().doorbell_record);
}

TEST_CASE("where the GPU cannot ring, a processor does, and the log says so once",
          "[req:3.11][A3]") {
  const LogFile log;
  Scene scene;
  {
    scene.driver.takes_registers = false;
    const auto memory = Mlx5CudaMemory::create(0).value();
    NicMlx5 nic = scene.open();
    const Mlx5Queue first = Scene::create(nic, *memory).value();
    const Mlx5Queue second = Scene::create(nic, *memory).value();
    CHECK(first.is_rung_by_processor());
    CHECK(first.view().doorbell != second.view().doorbell);
    const auto& pair = scene.verbs.queue_pairs.at(first.number());
    CHECK(pair.doorbell != first.view().doorbell);
    CHECK_FALSE(nic.progress());
    *first.view().doorbell = 0x1234;
    CHECK(nic.progress());
    CHECK(*pair.doorbell == 0x1234);
    *second.view().doorbell = 0x5678;
    CHECK(nic.progress());
    CHECK(*scene.verbs.queue_pairs.at(second.number()).doorbell == 0x5678);
  }
  scene.check_nothing_left();
  CHECK(log.count("a processor rings the doorbells of mlx5_0 port 1") == 1);
}

TEST_CASE("the user chooses who rings: the GPU or an error, or a processor anyway",
          "[req:3.11][A3]") {
  const LogFile log;
  Scene scene;
  {
    const auto memory = Mlx5CudaMemory::create(0).value();
    NicMlx5 nic = scene.open();
    std::array<Mlx5Queue::Options, 1> options{};
    options[0].doorbell = DoorbellChoice::cpu;
    {
      const auto made = nic.create_queues(*memory, options);
      REQUIRE(made.ok());
      CHECK(made.value()[0].is_rung_by_processor());
      CHECK(scene.driver.registered.empty());
    }
    options[0].doorbell = DoorbellChoice::gpu;
    {
      const auto made = nic.create_queues(*memory, options);
      REQUIRE(made.ok());
      CHECK_FALSE(made.value()[0].is_rung_by_processor());
    }
    scene.driver.takes_registers = false;
    const auto refused = nic.create_queues(*memory, options);
    REQUIRE_FALSE(refused.ok());
    const std::string text = refused.error().to_string();
    INFO(text);
    CHECK(text.find("ORIEL_DOORBELL=gpu") != std::string::npos);
    CHECK(text.find("doorbell register of mlx5_0 port 1") != std::string::npos);
    CHECK(text.find("PeerMappingOverride") != std::string::npos);
  }
  scene.check_nothing_left();
  CHECK(log.count("a processor rings") == 0);
}

TEST_CASE("rings may lie on the host and the users' words on the GPU", "[req:3.11]") {
  Scene scene;
  const auto memory = Mlx5CudaMemory::create(0).value();
  NicMlx5 nic = scene.open();
  const Mlx5Queue queue = Scene::create(nic, *memory, true).value();
  CHECK(scene.verbs.find("ibv_reg_dmabuf_mr") != nullptr);
  CHECK(scene.verbs.find("mlx5dv_devx_umem_reg_ex") == nullptr);
  CHECK(scene.verbs.find("mlx5dv_devx_umem_reg")->arguments[0] == address_of(queue.view().ring));
  CHECK(scene.verbs.find("CREATE_CQ")->command[40] == std::byte{0});
}

TEST_CASE("a queue is added while a kernel fills the GPU and a graph is being captured",
          "[req:3.11][B1]") {
  Scene scene;
  {
    const auto memory = Mlx5CudaMemory::create(0).value();
    NicMlx5 nic = scene.open();
    scene.driver.model.fill_devices(true);
    scene.driver.model.begin_foreign_capture();
    const auto made = Scene::create(nic, *memory);
    scene.driver.model.end_foreign_capture();
    scene.driver.model.fill_devices(false);
    CHECK(made.ok());
  }
  scene.check_nothing_left();
}

TEST_CASE("memory of a GPU is registered by pages around it", "[req:3.11]") {
  Scene scene;
  const auto memory = Mlx5CudaMemory::create(0).value();
  NicMlx5 nic = scene.open();
  void* window = reinterpret_cast<void*>(0x7000123450);
  const Mlx5Region region =
      nic.register_memory(*memory, window, 10000, kLocalWrite | kRemoteWrite).value();
  CHECK(region.local_key() != 0);
  REQUIRE(scene.driver.exported.size() == 1);
  CHECK(scene.driver.exported[0] == std::pair(CUdeviceptr{0x7000123000}, std::size_t{12288}));
  const auto& arguments = scene.verbs.find("ibv_reg_dmabuf_mr")->arguments;
  CHECK(arguments[0] == 0x450);
  CHECK(arguments[1] == 10000);
  CHECK(arguments[2] == 0x7000123450);
  scene.driver.export_status = CUDA_ERROR_INVALID_VALUE;
  const auto refused = nic.register_memory(*memory, window, 10000, kLocalWrite);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().native().domain == NativeDomain::cuda_driver);
}

TEST_CASE("a GPU that adapters cannot reach is refused", "[req:3.11]") {
  Scene scene;
  scene.driver.reached = 0;
  const auto memory = Mlx5CudaMemory::create(0);
  REQUIRE_FALSE(memory.ok());
  CHECK(memory.error().to_string().find("GPU 0") != std::string::npos);
  scene.check_nothing_left();
}

TEST_CASE("whichever call of the driver fails, all is undone", "[req:3.12]") {
  const std::size_t fds = oriel::test::count_fds();
  const bool on_host = GENERATE(false, true);
  long k = 1;
  for (bool hit = true; hit; ++k) {
    Scene scene;
    {
      const oriel::test::CudaFaultHooks hooks;
      oriel::test::FaultPlan plan;
      plan.fail_at = k;
      plan.status = CUDA_ERROR_UNKNOWN;
      const oriel::test::ScopedCudaFaults faults(plan);
      bool good = false;
      {
        const auto memory = Mlx5CudaMemory::create(0);
        if (memory.ok()) {
          NicMlx5 nic = scene.open();
          good = Scene::create(nic, *memory.value(), on_host, 8).ok();
        }
      }
      hit = plan.hit();
      INFO(k << ": " << (hit ? plan.failed.load() : "none"));
      CHECK(scene.verbs.live() == 0);
      if (!hit) CHECK(good);
    }
    INFO(k);
    scene.check_nothing_left();
  }
  CHECK(k > 30);
  CHECK(oriel::test::count_fds() == fds);
}
