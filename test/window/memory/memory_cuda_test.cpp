// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/memory/memory_cuda.hpp"

#include <cstring>
#include <random>
#include <thread>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process_number.hpp"
#include "base/try.hpp"
#include "framework_memory.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/cuda/fault_cuda.hpp"
#include "support/process_state.hpp"
#include "window/mapping/flat_space.hpp"
#include "window/memory/sizes.hpp"

// The GPU half of the memories, over the model of the driver.
namespace oriel::window {
namespace {

using test::FakeCuda;
using test::Framework;

std::unique_ptr<Memory> open_memory(int device = 0) {
  Result<std::unique_ptr<Memory>> made = make_cuda_memory(device);
  REQUIRE(made.ok());
  return std::move(made).value();
}

char* allocate(Memory& memory, std::size_t bytes) {
  Result<void*> made = memory.allocate(bytes);
  REQUIRE(made.ok());
  return static_cast<char*>(*made);
}

std::vector<Segment> segments_of(Memory& memory, const void* pointer, std::size_t bytes) {
  Result<std::vector<Segment>> found = memory.find_segments(pointer, bytes);
  REQUIRE(found.ok());
  return std::move(found).value();
}

Error refusal(Memory& memory, const void* pointer, std::size_t bytes) {
  Result<std::vector<Segment>> found = memory.find_segments(pointer, bytes);
  REQUIRE_FALSE(found.ok());
  return std::move(found).error();
}

/// Nothing wrong was done, and nothing is left.
void check_clean(const FakeCuda& fake) {
  CHECK(fake.violations() == std::vector<std::string>());
  CHECK(fake.held() == FakeCuda::Held());
  CHECK(fake.context_depth() == 0);
  CHECK(fake.capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_CASE("GPU memory of our allocator is found by any pointer inside it", "[req:1.19]") {
  FakeCuda fake;
  {
    const auto memory = open_memory();
    CHECK(memory->kind() == MemoryKind::cuda);
    CHECK(memory->device() == 0);
    CHECK(memory->granularity() == 2 * kMiB);
    char* pointer = allocate(*memory, 3 * kMiB);
    std::memset(pointer, 1, 4 * kMiB);
    const auto segments = segments_of(*memory, pointer + kMiB, 3 * kMiB);
    REQUIRE(segments.size() == 1);
    CHECK(reinterpret_cast<char*>(segments[0].base) == pointer);
    CHECK(segments[0].bytes == 4 * kMiB);
    CHECK(segments[0].allocation->id().process == process_number());
    CHECK(segments_of(*memory, pointer, 1)[0].allocation == segments[0].allocation);
    CHECK(refusal(*memory, pointer + 1, 4 * kMiB).message().find("past the end") !=
          std::string::npos);
    CHECK_FALSE(memory->free(pointer + 1).ok());
    CHECK(memory->free(pointer).ok());
    CHECK_FALSE(memory->free(pointer).ok());
    CHECK_FALSE(memory->allocate(0).ok());
    CHECK_FALSE(memory->allocate(SIZE_MAX).ok());
    CHECK(fake.held().physical_bytes == 4 * kMiB);  // what `segments` holds
  }
  check_clean(fake);
}

TEST_CASE("a framework's allocations are found, also several mapped back to back", "[req:1.19]") {
  FakeCuda fake;
  {
    const auto memory = open_memory();
    const Framework torch({2 * kMiB, 4 * kMiB, 2 * kMiB}, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    const auto one = segments_of(*memory, torch.base() + 3 * kMiB, kMiB);
    REQUIRE(one.size() == 1);
    CHECK(reinterpret_cast<char*>(one[0].base) == torch.base() + 2 * kMiB);
    const auto all = segments_of(*memory, torch.base() + kMiB, 7 * kMiB);
    REQUIRE(all.size() == 3);
    CHECK(all[1].allocation == one[0].allocation);  // known again while it is held
    CHECK(reinterpret_cast<char*>(all[2].base) == torch.base() + 6 * kMiB);
    CHECK(all[0].allocation->id() != all[2].allocation->id());
    CHECK(refusal(*memory, torch.base() + kMiB, 8 * kMiB).message().find("past the end") !=
          std::string::npos);
    CHECK(refusal(*memory, torch.base(), SIZE_MAX).code() == ErrorCode::invalid_argument);
  }
  check_clean(fake);
}

TEST_CASE("an identity is not used again for the next allocation", "[req:1.18]") {
  FakeCuda fake;
  const auto memory = open_memory();
  AllocationId first;
  {
    const Framework torch({2 * kMiB}, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    first = segments_of(*memory, torch.base(), 1)[0].allocation->id();
    CHECK(segments_of(*memory, torch.base(), 1)[0].allocation->id() != first);  // was let go
  }
  const Framework torch({2 * kMiB}, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CHECK(segments_of(*memory, torch.base(), 1)[0].allocation->id() != first);
}

TEST_CASE("GPU memory that cannot be shared is refused with the call to use instead",
          "[req:1.19][req:1.38]") {
  FakeCuda fake({.devices = 2});
  {
    const auto memory = open_memory();
    CUdeviceptr plain = 0;
    void* pinned = nullptr;
    CUcontext popped = nullptr;
    CUcontext context = nullptr;
    REQUIRE(cuda().device_primary_ctx_retain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuda().ctx_push_current(context) == CUDA_SUCCESS);
    REQUIRE(cuda().mem_alloc(&plain, 4096) == CUDA_SUCCESS);
    REQUIRE(cuda().mem_host_alloc(&pinned, 4096, 0) == CUDA_SUCCESS);
    char on_stack[16];
    const Error of_malloc = refusal(*memory, on_stack, 16);
    const Error of_plain = refusal(*memory, reinterpret_cast<void*>(plain), 16);
    const Error of_pinned = refusal(*memory, pinned, 16);
    CHECK(of_malloc.message().find("malloc") != std::string::npos);
    CHECK(of_plain.message().find("cudaMalloc") != std::string::npos);
    CHECK(of_pinned.message().find("pinned") != std::string::npos);
    for (const Error& error : {of_malloc, of_plain, of_pinned}) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      CHECK(error.hint().find("ncclMemAlloc") != std::string::npos);
    }
    CHECK(cuda().mem_free(plain) == CUDA_SUCCESS);
    CHECK(cuda().mem_free_host(pinned) == CUDA_SUCCESS);
    CHECK(cuda().ctx_pop_current(&popped) == CUDA_SUCCESS);
    CHECK(cuda().device_primary_ctx_release(0) == CUDA_SUCCESS);

    const Framework no_handle({2 * kMiB}, CU_MEM_HANDLE_TYPE_NONE);
    const Error without = refusal(*memory, no_handle.base(), 16);
    CHECK(without.message().find("exportable handle type") != std::string::npos);
    CHECK(without.hint().find("CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR") != std::string::npos);
    const Framework elsewhere({2 * kMiB}, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              {CU_MEM_LOCATION_TYPE_DEVICE, {1}});
    CHECK(refusal(*memory, elsewhere.base(), 16).message().find("GPU 1") != std::string::npos);
    const Framework on_host({2 * kMiB}, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}});
    CHECK(refusal(*memory, on_host.base(), 16).message().find("host memory") != std::string::npos);
    CHECK_FALSE(make_cuda_memory(2).ok());
    CHECK_FALSE(make_cuda_memory(-1).ok());
  }
  check_clean(fake);
}

TEST_CASE("fabric handles where the machine gives them, descriptors elsewhere", "[req:1.17]") {
  const bool fabric = GENERATE(false, true);
  const bool permitted = GENERATE(false, true);
  FakeCuda fake({.fabric = fabric, .fabric_permitted = permitted});
  {
    const auto memory = open_memory();
    char* pointer = allocate(*memory, kMiB);
    auto segment = segments_of(*memory, pointer, kMiB)[0];
    Result<ShareableHandle> handle = memory->export_handle(*segment.allocation);
    REQUIRE(handle.ok());
    CHECK(std::holds_alternative<FabricHandle>(*handle) == (fabric && permitted));
    Result<AllocationRef> imported =
        memory->import_handle(std::move(handle).value(), segment.allocation->id(), segment.bytes);
    REQUIRE(imported.ok());
    Result<std::unique_ptr<AddressRange>> range = memory->reserve(8 * kMiB, 2 * kMiB);
    REQUIRE(range.ok());
    auto mapping = memory->map(**range, (*range)->base() + 4 * kMiB, *imported);
    REQUIRE(mapping.ok());
    pointer[100] = 'x';
    CHECK(reinterpret_cast<char*>((*mapping)->base())[100] == 'x');
    CHECK(memory->free(pointer).ok());
  }
  check_clean(fake);
}

TEST_CASE("whether memory will have fabric handles is tried, and leaves nothing behind",
          "[req:2.3]") {
  const auto tells = [](FakeCuda::Options options) {
    FakeCuda fake(options);
    bool told = false;
    {
      const auto memory = open_memory();
      told = memory->exports_fabric_handles();
      CHECK(memory->exports_fabric_handles() == told);
      CHECK(fake.held().physical_bytes == 0);
    }
    check_clean(fake);
    return told;
  };
  CHECK(tells({.fabric = true}));
  CHECK_FALSE(tells({.fabric = true, .fabric_permitted = false}));
  CHECK_FALSE(tells({.fabric = false}));
  CHECK_FALSE(tells({.memory_bytes = 0, .fabric = true}));  // not now
}

TEST_CASE("an allocation that was taken over is mapped by nobody until it is mapped",
          "[req:2.3][H3]") {
  FakeCuda fake;
  {
    const auto memory = open_memory();
    char* own = allocate(*memory, 2 * kMiB);
    std::memset(own, 7, 2 * kMiB);
    const auto segments = segments_of(*memory, own, 1);
    auto handle = memory->export_handle(*segments[0].allocation);
    REQUIRE(handle.ok());
    const int before = fake.held().mappings;
    auto imported = memory->import_handle(std::move(handle).value(), {1, 2}, 2 * kMiB);
    REQUIRE(imported.ok());
    auto range = memory->reserve(4 * kMiB, 2 * kMiB);
    REQUIRE(range.ok());
    CHECK(fake.held().mappings == before);
    // What the kernel reads on behalf of a process faults without ending it.
    const auto readable = [](const std::byte* at) {
      int ends[2] = {};
      REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
      const bool went = ::write(ends[1], at, 1) == 1;
      ::close(ends[0]);
      ::close(ends[1]);
      return went;
    };
    std::byte* const at = (*range)->base() + 2 * kMiB;
    CHECK_FALSE(readable(at));
    {
      auto mapping = memory->map(**range, at, *imported);
      REQUIRE(mapping.ok());
      CHECK(readable(at));
      CHECK(*at == std::byte{7});
      CHECK_FALSE(readable((*range)->base()));
    }
    CHECK_FALSE(readable(at));
    CHECK(memory->free(own).ok());
  }
  check_clean(fake);
}

TEST_CASE("a peer's GPU handle is checked against what was announced", "[req:1.17]") {
  const std::size_t fds = test::count_fds();
  {
    FakeCuda fake;
    {
      const auto memory = open_memory();
      const auto import = [&](ShareableHandle handle, std::size_t bytes) {
        return memory->import_handle(std::move(handle), {7, 7}, bytes);
      };
      CHECK_FALSE(import(OwnedFd(), 2 * kMiB).ok());
      CHECK_FALSE(import(OwnedFd(::open("/dev/null", O_RDWR | O_CLOEXEC)), 2 * kMiB).ok());
      CHECK_FALSE(import(FabricHandle{}, 2 * kMiB).ok());
      char* pointer = allocate(*memory, 2 * kMiB);
      const auto segment = segments_of(*memory, pointer, 1)[0];
      for (const std::size_t bytes : {std::size_t{0}, kMiB, SIZE_MAX}) {
        Result<ShareableHandle> handle = memory->export_handle(*segment.allocation);
        REQUIRE(handle.ok());
        CHECK_FALSE(import(std::move(handle).value(), bytes).ok());
      }
      // A size that is too large comes out when it is mapped.
      Result<ShareableHandle> handle = memory->export_handle(*segment.allocation);
      REQUIRE(handle.ok());
      Result<AllocationRef> imported = import(std::move(handle).value(), 4 * kMiB);
      REQUIRE(imported.ok());
      Result<std::unique_ptr<AddressRange>> range = memory->reserve(8 * kMiB, 2 * kMiB);
      REQUIRE(range.ok());
      CHECK_FALSE(memory->map(**range, (*range)->base(), *imported).ok());
      CHECK(memory->map(**range, (*range)->base(), segment.allocation).ok());
      CHECK(memory->free(pointer).ok());
    }
    check_clean(fake);
  }
  CHECK(test::count_fds() == fds);
}

TEST_CASE("GPU memory of another process", "[req:1.17]") {
  FakeCuda fake;
  {
    const auto memory = open_memory();
    char* pointer = allocate(*memory, 2 * kMiB);
    auto segment = segments_of(*memory, pointer, 1)[0];
    Result<ShareableHandle> handle = memory->export_handle(*segment.allocation);
    REQUIRE(handle.ok());
    const pid_t child = ::fork();
    if (child == 0) {
      // The child's model has the parent's state; it imports what it inherited by descriptor.
      Result<AllocationRef> imported =
          memory->import_handle(std::move(handle).value(), segment.allocation->id(), segment.bytes);
      if (!imported.ok()) ::_exit(1);
      Result<std::unique_ptr<AddressRange>> range = memory->reserve(2 * kMiB, 2 * kMiB);
      if (!range.ok()) ::_exit(2);
      auto mapping = memory->map(**range, (*range)->base(), *imported);
      if (!mapping.ok()) ::_exit(3);
      std::strcpy(reinterpret_cast<char*>((*mapping)->base()), "from the child");
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(std::strcmp(pointer, "from the child") == 0);
    CHECK(memory->free(pointer).ok());
  }
  check_clean(fake);
}

TEST_CASE("ranks of one process share an allocation without export", "[req:1.17]") {
  FakeCuda fake({.devices = 2});
  {
    const auto first = open_memory(0);
    const auto second = open_memory(1);
    char* pointer = allocate(*first, 2 * kMiB);
    const AllocationRef allocation = segments_of(*first, pointer, 1)[0].allocation;
    auto space = FlatSpace::acquire(*second, {{1, 0}, {1, 1}}, kSlotUnitBytes);
    REQUIRE(space.ok());
    auto mapping = (*space)->map(0, 2 * kMiB, allocation);
    REQUIRE(mapping.ok());
    CHECK((*space)->map(0, 2 * kMiB, allocation).ok());
    CHECK_FALSE((*space)->map(0, kMiB, allocation).ok());
    pointer[0] = 'y';
    CHECK(reinterpret_cast<char*>((*mapping)->base())[0] == 'y');
    CHECK(first->free(pointer).ok());
    CHECK(reinterpret_cast<char*>((*mapping)->base())[0] == 'y');
  }
  check_clean(fake);
}

TEST_CASE("a GPU that does not reach the other one says so", "[req:1.38]") {
  FakeCuda fake({.devices = 2, .peer_access = false});
  {
    const auto first = open_memory(0);
    const auto second = open_memory(1);
    char* pointer = allocate(*first, 2 * kMiB);
    auto range = second->reserve(2 * kMiB, 2 * kMiB);
    REQUIRE(range.ok());
    auto mapping =
        second->map(**range, (*range)->base(), segments_of(*first, pointer, 1)[0].allocation);
    REQUIRE_FALSE(mapping.ok());
    CHECK(mapping.error().message().find("GPU 1") != std::string::npos);
    CHECK(mapping.error().native().value == CUDA_ERROR_INVALID_DEVICE);
    CHECK(first->free(pointer).ok());
  }
  check_clean(fake);
}

/// Everything that registration does with a memory.
Status work(Memory& memory) {
  ORIEL_TRY(void* pointer, memory.allocate(3 * kMiB));
  const auto run = [&]() -> Status {
    ORIEL_TRY(std::vector<Segment> segments, memory.find_segments(pointer, kMiB));
    ORIEL_TRY(ShareableHandle handle, memory.export_handle(*segments[0].allocation));
    ORIEL_TRY(AllocationRef imported,
              memory.import_handle(std::move(handle), {1, 1}, segments[0].bytes));
    ORIEL_TRY(auto space, FlatSpace::acquire(memory, {{1, 0}, {2, 0}}, kSlotUnitBytes));
    ORIEL_TRY(auto own, space->map(0, 0, segments[0].allocation));
    ORIEL_TRY(auto peer, space->map(1, 0, imported));
    *own->base() = std::byte{17};
    if (*peer->base() != std::byte{17}) return Error(ErrorCode::internal, "not the same memory");
    return {};
  };
  Status outcome = run();
  const Status freed = memory.free(pointer);
  return outcome.ok() ? freed : outcome;
}

TEST_CASE("whichever driver call fails, nothing leaks", "[req:1.41]") {
  const test::ProcessState before = test::process_state();
  long calls = 0;
  for (long k = 0; k == 0 || k <= calls; ++k) {
    FakeCuda fake({.fabric = (k % 2 == 1), .fabric_permitted = true});
    {
      const test::CudaFaultHooks hooks;
      test::FaultPlan plan;
      plan.fail_at = k;
      plan.status = CUDA_ERROR_UNKNOWN;
      const test::ScopedCudaFaults faults(plan);
      const Status outcome = [&]() -> Status {
        ORIEL_TRY(const std::unique_ptr<Memory> memory, make_cuda_memory(0));
        return work(*memory);
      }();
      if (k == 0) {
        CHECK(outcome.ok());
        calls = plan.calls;
        CHECK(calls > 40);
      }
      CAPTURE(k, plan.failed.load());
      if (!outcome.ok()) {
        CHECK(plan.hit());
        CHECK(outcome.error().native().domain == NativeDomain::cuda_driver);
        CHECK(outcome.error().native().value == CUDA_ERROR_UNKNOWN);
      }
      CHECK(fake.violations() == std::vector<std::string>());
      CHECK(fake.held() == FakeCuda::Held());
    }
    check_clean(fake);
  }
  CHECK(test::process_state() == before);
}

TEST_CASE("another thread's capture is not broken", "[req:1.20]") {
  FakeCuda fake;
  {
    const auto memory = open_memory();
    fake.begin_foreign_capture();
    CHECK(work(*memory).ok());
    fake.end_foreign_capture();
  }
  check_clean(fake);
}

TEST_CASE("10,000 GPU registrations in random order leave nothing behind", "[req:1.21]") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const test::ProcessState before = test::process_state();
  {
    FakeCuda fake;
    {
      const auto memory = open_memory();
      const auto space = FlatSpace::acquire(*memory, {{1, 0}, {2, 0}}, kSlotUnitBytes);
      REQUIRE(space.ok());
      const Framework torch({2 * kMiB, 2 * kMiB, 4 * kMiB},
                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      std::vector<std::vector<std::shared_ptr<Mapping>>> live(16);
      for (int i = 0; i < 10000; ++i) {
        const std::size_t slot = random() % live.size();
        live[slot].clear();
        std::size_t at = slot * 16 * kMiB;
        for (const Segment& segment : segments_of(*memory, torch.base() + random() % (2 * kMiB),
                                                  1 + random() % (6 * kMiB))) {
          auto mapping = (*space)->map(static_cast<int>(i % 2), at, segment.allocation);
          REQUIRE(mapping.ok());
          live[slot].push_back(std::move(mapping).value());
          at += segment.bytes;
        }
      }
      CHECK(fake.held().physical_bytes == 8 * kMiB);
    }
    check_clean(fake);
  }
  CHECK(test::process_state() == before);
}

TEST_CASE("threads of one process use one memory at once", "[req:1.10]") {
  FakeCuda fake;
  {
    const auto memory = open_memory();
    std::vector<std::thread> threads;
    std::vector<int> failures(4, 0);
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) {
          const Result<void*> made = memory->allocate(2 * kMiB);
          if (!made.ok() || !memory->find_segments(*made, 1).ok() || !memory->free(*made).ok()) {
            ++failures[t];
          }
        }
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK(failures == std::vector<int>(4, 0));
  }
  check_clean(fake);
}

}  // namespace
}  // namespace oriel::window
