// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/memory/memory_cuda.hpp"

#include <cstring>

#include <unistd.h>

#include "framework_memory.hpp"
#include "support/cuda/fault_cuda.hpp"
#include "window/memory/memory_promises.hpp"
#include "window/memory/model_memory.hpp"

// Tests GPU memory on a model of the driver.
namespace oriel::window {
namespace {

using test::Framework;

constexpr auto kDescriptors = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

}  // namespace

TEST_CASE("GPU memory passes the tests of every kind of memory",
          "[req:1.10][req:1.15][req:1.17][req:1.18][req:1.19][req:1.21][req:1.38]") {
  ModelMemory model;
  CHECK(model.memory().kind() == MemoryKind::cuda);
  CHECK(model.memory().device() == 0);
  CHECK(model.memory().granularity() == 2 * kMiB);
  check_every_promise(model.memory());
}

TEST_CASE("a framework's allocations are found, also several mapped back to back, and known again",
          "[req:1.18][req:1.19]") {
  ModelMemory model;
  Memory& memory = model.memory();
  AllocationId first;
  {
    const Framework torch({2 * kMiB, 4 * kMiB, 2 * kMiB}, kDescriptors);
    first = segments_of(memory, torch.base(), 1)[0].allocation->id();
    const auto one = segments_of(memory, torch.base() + 3 * kMiB, kMiB);
    REQUIRE(one.size() == 1);
    CHECK(reinterpret_cast<char*>(one[0].base) == torch.base() + 2 * kMiB);
    const auto all = segments_of(memory, torch.base() + kMiB, 7 * kMiB);
    REQUIRE(all.size() == 3);
    CHECK(all[1].allocation == one[0].allocation);  // found again while a reference is held
    CHECK(all[0].allocation->id() != first);        // the old reference was dropped
    CHECK(reinterpret_cast<char*>(all[2].base) == torch.base() + 6 * kMiB);
    CHECK(all[0].allocation->id() != all[2].allocation->id());
    CHECK(refusal(memory, torch.base() + kMiB, 8 * kMiB).message().find("past the end") !=
          std::string::npos);
    CHECK(refusal(memory, torch.base(), SIZE_MAX).code() == ErrorCode::invalid_argument);
  }
  const Framework next({2 * kMiB}, kDescriptors);
  CHECK(segments_of(memory, next.base(), 1)[0].allocation->id() != first);
}

TEST_CASE("GPU memory that cannot be shared is refused by its kind", "[req:1.19][req:1.38]") {
  ModelMemory model({.devices = 2});
  Memory& memory = model.memory();
  const auto refused = [&](const void* pointer, const std::string& what, const std::string& hint) {
    const Error error = refusal(memory, pointer, 16);
    INFO(error.to_string());
    CHECK(error.code() == ErrorCode::invalid_argument);
    CHECK(error.message().find(what) != std::string::npos);
    CHECK(error.hint().find(hint) != std::string::npos);
  };
  CUdeviceptr plain = 0;
  void* pinned = nullptr;
  CUcontext context = nullptr;
  REQUIRE(cuda().device_primary_ctx_retain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuda().ctx_push_current(context) == CUDA_SUCCESS);
  REQUIRE(cuda().mem_alloc(&plain, 4096) == CUDA_SUCCESS);
  REQUIRE(cuda().mem_host_alloc(&pinned, 4096, 0) == CUDA_SUCCESS);
  char on_stack[16];
  refused(on_stack, "malloc", "ncclMemAlloc");
  refused(reinterpret_cast<void*>(plain), "cudaMalloc", "ncclMemAlloc");
  refused(pinned, "pinned", "ncclMemAlloc");
  CHECK(cuda().mem_free(plain) == CUDA_SUCCESS);
  CHECK(cuda().mem_free_host(pinned) == CUDA_SUCCESS);
  CHECK(cuda().ctx_pop_current(&context) == CUDA_SUCCESS);
  CHECK(cuda().device_primary_ctx_release(0) == CUDA_SUCCESS);
  const Framework no_handle({2 * kMiB}, CU_MEM_HANDLE_TYPE_NONE);
  refused(no_handle.base(), "exportable handle type", "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
  const Framework elsewhere({2 * kMiB}, kDescriptors, {CU_MEM_LOCATION_TYPE_DEVICE, {1}});
  refused(elsewhere.base(), "GPU 1", "");
  const Framework on_host({2 * kMiB}, kDescriptors, {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}});
  refused(on_host.base(), "host memory", "");
  CHECK_FALSE(make_cuda_memory(2).ok());
  CHECK_FALSE(make_cuda_memory(-1).ok());
}

TEST_CASE("fabric handles where the machine gives them, descriptors elsewhere, as asked before",
          "[req:1.17][req:2.3]") {
  const bool fabric = GENERATE(false, true);
  const bool permitted = GENERATE(false, true);
  ModelMemory model({.fabric = fabric, .fabric_permitted = permitted});
  Memory& memory = model.memory();
  for (int i = 0; i < 2; ++i) CHECK(memory.exports_fabric_handles() == (fabric && permitted));
  CHECK(model.driver().held().physical_bytes == 0);
  check_imports(memory);
  char* const pointer = allocate(memory, kMiB);
  {
    const auto own = segments_of(memory, pointer, kMiB)[0].allocation;
    CHECK(std::holds_alternative<FabricHandle>(exported(memory, *own)) == (fabric && permitted));
  }
  CHECK(memory.free(pointer).ok());
}

TEST_CASE("a GPU without memory has no fabric handles for now", "[req:2.3]") {
  ModelMemory model({.memory_bytes = 0, .fabric = true});
  CHECK_FALSE(model.memory().exports_fabric_handles());
}

TEST_CASE("an allocation that was taken over is mapped by nobody until it is mapped",
          "[req:2.3][H3]") {
  ModelMemory model;
  Memory& memory = model.memory();
  char* const own = allocate(memory, 2 * kMiB);
  std::memset(own, 7, 2 * kMiB);
  const int before = model.driver().held().mappings;
  const AllocationRef imported = import_of(memory, *segments_of(memory, own, 1)[0].allocation);
  const auto range = reserve(memory, 4 * kMiB, 2 * kMiB);
  CHECK(model.driver().held().mappings == before);
  // write() to a pipe reads the address in the kernel: a fault is an error, not a signal.
  const auto readable = [](const std::byte* at) {
    int ends[2] = {};
    REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    const bool went = ::write(ends[1], at, 1) == 1;
    ::close(ends[0]);
    ::close(ends[1]);
    return went;
  };
  std::byte* const at = range->base() + 2 * kMiB;
  CHECK_FALSE(readable(at));
  {
    const auto mapping = memory.map(*range, at, imported);
    REQUIRE(mapping.ok());
    CHECK(readable(at));
    CHECK(*at == std::byte{7});
    CHECK_FALSE(readable(range->base()));
  }
  CHECK_FALSE(readable(at));
  CHECK(memory.free(own).ok());
}

TEST_CASE("ranks of one process share an allocation without export, if their GPUs reach it",
          "[req:1.17][req:1.38]") {
  const bool reaches = GENERATE(true, false);
  ModelMemory model({.devices = 2, .peer_access = reaches});
  Memory& first = model.memory();
  const auto second = ModelMemory::open(1);
  char* const pointer = allocate(first, 2 * kMiB);
  {
    const AllocationRef allocation = segments_of(first, pointer, 1)[0].allocation;
    auto space = FlatSpace::acquire(*second, {{1, 0}, {1, 1}}, kSlotUnitBytes);
    REQUIRE(space.ok());
    const auto mapping = (*space)->map(0, 2 * kMiB, allocation);
    REQUIRE(mapping.ok() == reaches);
    if (reaches) {
      CHECK((*space)->map(0, 2 * kMiB, allocation).ok());
      CHECK_FALSE((*space)->map(0, kMiB, allocation).ok());
      pointer[0] = 'y';
      CHECK(reinterpret_cast<char*>((*mapping)->base())[0] == 'y');
    } else {
      CHECK(mapping.error().message().find("GPU 1") != std::string::npos);
      CHECK(mapping.error().native().value == CUDA_ERROR_INVALID_DEVICE);
    }
  }
  CHECK(first.free(pointer).ok());
}

TEST_CASE("any failed driver call of CUDA memory leaks nothing", "[req:1.41]") {
  const test::ProcessState before = test::process_state();
  const long calls = test::fail_each_call(
      CUDA_ERROR_UNKNOWN,
      [](test::FaultPlan& plan) -> Status {
        const test::CheckedCuda fake({.fabric = (plan.fail_at % 2 == 1), .fabric_permitted = true});
        const test::CudaFaultHooks hooks;
        const test::ScopedCudaFaults faults(plan);
        ORIEL_TRY(const std::unique_ptr<Memory> memory, make_cuda_memory(0));
        return use_memory(*memory);
      },
      [](const test::FaultPlan&, const Status& outcome) {
        CHECK((outcome.ok() || outcome.error().native().domain == NativeDomain::cuda_driver));
      });
  CHECK(calls > 40);
  CHECK(test::process_state() == before);
}

TEST_CASE("use of GPU memory makes no call that breaks another thread's capture", "[req:1.20]") {
  ModelMemory model;
  model.driver().begin_foreign_capture();
  CHECK(use_memory(model.memory()).ok());
  model.driver().end_foreign_capture();
}

}  // namespace oriel::window
