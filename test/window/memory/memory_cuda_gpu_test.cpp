// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include <catch2/catch.hpp>
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cuda_scope.hpp"
#include "base/try.hpp"
#include "framework_memory.hpp"
#include "shadow/shadow_pool_cuda.hpp"
#include "support/cuda/needs_gpu.hpp"
#include "window/exchange/send_descriptors.hpp"
#include "window/memory/memory_cuda.hpp"
#include "window/memory/memory_promises.hpp"
#include "window/memory/on_device.hpp"

// Tests GPU memory and device objects with the real driver.
namespace oriel::window {
namespace {

using test::Framework;

constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr unsigned kPattern = 0x0a11ce42;

/// Message to the other process. A file descriptor is sent as ancillary data.
struct Parcel {
  std::size_t bytes;
  bool fabric;
  FabricHandle handle;
};

Result<unsigned> read_word(const void* pointer) {
  ORIEL_TRY(const auto device, OnDevice::enter(0));
  return device->word(static_cast<const std::byte*>(pointer));
}

/// Runs in the other process: maps the received handle and writes the pattern into the memory.
Status serve_one(int socket) {
  Parcel parcel{};
  iovec part{&parcel, sizeof parcel};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof parcel)) {
    return Error(ErrorCode::system, "no parcel");
  }
  ShareableHandle handle = parcel.handle;
  if (!parcel.fabric) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    handle = OwnedFd(fd);
  }
  ORIEL_TRY(std::unique_ptr<Memory> memory, make_cuda_memory(0));
  ORIEL_TRY(AllocationRef imported, memory->import_handle(std::move(handle), {5, 5}, parcel.bytes));
  ORIEL_TRY(auto space, FlatSpace::acquire(*memory, {{1, 0}, {2, 0}}, kSlotUnitBytes));
  ORIEL_TRY(auto mapping, space->map(1, 2 * kMiB, imported));
  ORIEL_TRY(const auto device, OnDevice::enter(0));
  return device->fill(mapping->base(), kPattern, parcel.bytes);
}

/// A process forked before this process called the driver, because the driver does not survive a
/// fork.
class OtherProcess {
 public:
  OtherProcess() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return;
    child_ = ::fork();
    if (child_ == 0) {
      ::close(ends[0]);
      for (;;) {
        char again = 0;
        if (::recv(ends[1], &again, 1, 0) != 1) ::_exit(0);
        const Status served = serve_one(ends[1]);
        if (!served.ok()) std::printf("other process: %s\n", served.error().to_string().c_str());
        const char result = served.ok() ? 1 : 0;
        if (::send(ends[1], &result, 1, 0) != 1) ::_exit(1);
      }
    }
    ::close(ends[1]);
    socket_ = ends[0];
  }
  ~OtherProcess() {
    ::close(socket_);
    ::waitpid(child_, nullptr, 0);
  }
  /// Sends a handle; returns true if the other process mapped and wrote the memory.
  bool write_pattern(const ShareableHandle& handle, std::size_t bytes) {
    Parcel parcel{bytes, std::holds_alternative<FabricHandle>(handle), {}};
    std::vector<int> fds;
    if (parcel.fabric) {
      parcel.handle = std::get<FabricHandle>(handle);
    } else {
      fds.push_back(std::get<OwnedFd>(handle).get());
    }
    char result = 1;
    return ::send(socket_, &result, 1, 0) == 1 &&
           send_with_descriptors(socket_, std::as_bytes(std::span(&parcel, 1)), fds) &&
           ::recv(socket_, &result, 1, 0) == 1 && result == 1;
  }

 private:
  int socket_ = -1;
  pid_t child_ = -1;
};

OtherProcess other_process;  // forks before the next line calls the driver
const test::NeedsGpu needs_gpu;

Memory& memory() {
  static Memory* const opened = [] {
    Result<Memory*> made = cuda_memory(0);
    REQUIRE(made.ok());
    return *made;
  }();
  return *opened;
}

Error refusal(const void* pointer, std::size_t bytes) {
  Error error = refusal(memory(), pointer, bytes);
  std::printf("refused: %s\n", error.to_string().c_str());
  return error;
}

std::size_t free_bytes() {
  Result<PrimaryContext> context = PrimaryContext::retain(0);
  REQUIRE(context.ok());
  const Result<CudaScope> scope = CudaScope::enter(context->get());
  std::size_t left = 0;
  std::size_t total = 0;
  REQUIRE(cuda().mem_get_info(&left, &total) == CUDA_SUCCESS);
  return left;
}

TEST_CASE("a second search finds the same allocations of our memory and of a framework's",
          "[req:1.19]") {
  char* pointer = allocate(memory(), 3 * kMiB);
  const auto segments = segments_of(memory(), pointer + kMiB, kMiB);
  REQUIRE(segments.size() == 1);
  CHECK(reinterpret_cast<char*>(segments[0].base) == pointer);
  CHECK(segments[0].bytes == 4 * kMiB);
  CHECK(segments_of(memory(), pointer, 1)[0].allocation == segments[0].allocation);
  CHECK(refusal(pointer + 1, 4 * kMiB).message().find("past the end") != std::string::npos);
  CHECK(memory().free(pointer).ok());

  const Framework torch({2 * kMiB, 4 * kMiB, 2 * kMiB}, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const auto all = segments_of(memory(), torch.base() + kMiB, 7 * kMiB);
  REQUIRE(all.size() == 3);
  CHECK(reinterpret_cast<char*>(all[0].base) == torch.base());
  CHECK(all[1].bytes == 4 * kMiB);
  CHECK(segments_of(memory(), torch.base() + 3 * kMiB, kMiB)[0].allocation == all[1].allocation);
  CHECK(refusal(torch.base() + kMiB, 8 * kMiB).message().find("past the end") != std::string::npos);
}

TEST_CASE("memory that cannot be shared is refused by its kind", "[req:1.19][req:1.38]") {
  Result<PrimaryContext> context = PrimaryContext::retain(0);
  REQUIRE(context.ok());
  const Result<CudaScope> scope = CudaScope::enter(context->get());
  CUdeviceptr plain = 0;
  CUdeviceptr managed = 0;
  void* pinned = nullptr;
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  using AllocManaged = CUresult (*)(CUdeviceptr*, std::size_t, unsigned);
  const auto alloc_managed = reinterpret_cast<AllocManaged>(::dlsym(driver, "cuMemAllocManaged"));
  REQUIRE(alloc_managed(&managed, 4096, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  REQUIRE(cuda().mem_alloc(&plain, 4096) == CUDA_SUCCESS);
  REQUIRE(cuda().mem_host_alloc(&pinned, 4096, 0) == CUDA_SUCCESS);
  char on_stack[16];
  CHECK(refusal(on_stack, 16).message().find("malloc") != std::string::npos);
  CHECK(refusal(nullptr, 16).code() == ErrorCode::invalid_argument);
  CHECK(refusal(reinterpret_cast<void*>(plain), 16).message().find("cudaMalloc") !=
        std::string::npos);
  CHECK(refusal(reinterpret_cast<void*>(managed), 16).message().find("managed") !=
        std::string::npos);
  CHECK(refusal(pinned, 16).message().find("pinned") != std::string::npos);
  CHECK(cuda().mem_free(plain) == CUDA_SUCCESS);
  CHECK(cuda().mem_free(managed) == CUDA_SUCCESS);
  CHECK(cuda().mem_free_host(pinned) == CUDA_SUCCESS);
  const Framework no_handle({2 * kMiB}, CU_MEM_HANDLE_TYPE_NONE);
  CHECK(refusal(no_handle.base(), 16).message().find("exportable handle type") !=
        std::string::npos);
}

TEST_CASE("another process maps and writes GPU memory", "[req:1.17]") {
  char* pointer = allocate(memory(), 4 * kMiB);
  const auto segment = segments_of(memory(), pointer, 1)[0];
  {
    const ShareableHandle handle = exported(memory(), *segment.allocation);
    std::printf("handles travel as %s\n",
                std::holds_alternative<FabricHandle>(handle) ? "fabric handles" : "descriptors");
    CHECK(other_process.write_pattern(handle, segment.bytes));
    Result<unsigned> last = read_word(pointer + 4 * kMiB - 4);
    REQUIRE(last.ok());
    CHECK(*last == kPattern);
  }
  CHECK(memory().free(pointer).ok());
  const Framework torch({2 * kMiB}, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const auto foreign = segments_of(memory(), torch.base(), 1)[0];
  const ShareableHandle handle = exported(memory(), *foreign.allocation);
  CHECK(std::holds_alternative<OwnedFd>(handle));
  CHECK(other_process.write_pattern(handle, foreign.bytes));
  Result<unsigned> first = read_word(torch.base());
  REQUIRE(first.ok());
  CHECK(*first == kPattern);
}

TEST_CASE("a peer's handle that is none, or of another size, is refused", "[req:1.17]") {
  const auto import = [&](ShareableHandle handle, std::size_t bytes) {
    Result<AllocationRef> imported = memory().import_handle(std::move(handle), {7, 7}, bytes);
    if (!imported.ok()) std::printf("refused: %s\n", imported.error().to_string().c_str());
    return imported;
  };
  CHECK_FALSE(import(OwnedFd(::open("/dev/null", O_RDWR | O_CLOEXEC)), 2 * kMiB).ok());
  OwnedFd memfd(::memfd_create("no-gpu-memory", MFD_CLOEXEC));
  REQUIRE(::ftruncate(memfd.get(), 2 * kMiB) == 0);
  CHECK_FALSE(import(std::move(memfd), 2 * kMiB).ok());
  CHECK_FALSE(import(FabricHandle{}, 2 * kMiB).ok());
  char* pointer = allocate(memory(), 2 * kMiB);
  const auto segment = segments_of(memory(), pointer, 1)[0];
  auto range = memory().reserve(8 * kMiB, 2 * kMiB);
  REQUIRE(range.ok());
  Result<AllocationRef> larger = import(exported(memory(), *segment.allocation), 4 * kMiB);
  const bool mapped = larger.ok() && memory().map(**range, (*range)->base(), *larger).ok();
  CHECK_FALSE(mapped);
  CHECK(memory().free(pointer).ok());
}

TEST_CASE("the flat range is aligned so that a slot is one add to the high word", "[req:1.15]") {
  auto space = FlatSpace::acquire(memory(), std::vector<TeamMember>(8, {1, 0}),
                                  automatic_slot_bytes(MemoryKind::cuda, 141 * kGiB, 8));
  REQUIRE(space.ok());
  CHECK(reinterpret_cast<std::uintptr_t>((*space)->base()) % kSlotUnitBytes == 0);
  std::printf("8 slots of 144 GiB reserved at %p\n", static_cast<void*>((*space)->base()));
}

/// Makes the memory calls of registration and of the pool of device objects.
Status work() {
  ORIEL_TRY(void* pointer, memory().allocate(4 * kMiB));
  {
    ORIEL_TRY(std::vector<Segment> segments, memory().find_segments(pointer, kMiB));
    ORIEL_TRY(ShareableHandle handle, memory().export_handle(*segments[0].allocation));
    ORIEL_TRY(AllocationRef imported,
              memory().import_handle(std::move(handle), {1, 1}, segments[0].bytes));
    ORIEL_TRY(auto space, FlatSpace::acquire(memory(), {{1, 0}, {2, 0}}, kSlotUnitBytes));
    ORIEL_TRY(auto own, space->map(0, 0, segments[0].allocation));
    ORIEL_TRY(auto peer, space->map(1, 0, imported));
    ORIEL_TRY(auto pool, shadow::cuda_pool(0, 64, 64));
    const std::array<std::byte, 64> contents{std::byte{1}};
    for (int i = 0; i < 100; ++i) {
      ORIEL_TRY(void* object, pool->allocate(contents));
      ORIEL_CHECK(pool->flush());
      ORIEL_CHECK(pool->free(object));
    }
  }
  return memory().free(pointer);
}

TEST_CASE("nothing waits for a stream that is stuck", "[req:1.20]") {
  Result<PrimaryContext> context = PrimaryContext::retain(0);
  REQUIRE(context.ok());
  const Result<CudaScope> scope = CudaScope::enter(context->get());
  REQUIRE(work().ok());  // loads lazily loaded modules
  void* flag = nullptr;
  CUdeviceptr address = 0;
  CUstream stream = nullptr;
  REQUIRE(cuda().mem_host_alloc(&flag, 4, CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS);
  *static_cast<volatile unsigned*>(flag) = 0;
  REQUIRE(cuda().mem_host_get_device_pointer(&address, flag, 0) == CUDA_SUCCESS);
  REQUIRE(cuda().stream_create(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cuda().stream_wait_value_32(stream, address, 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  std::future<bool> done = std::async(std::launch::async, [] { return work().ok(); });
  const bool in_time = done.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  CHECK(cuda().stream_query(stream) == CUDA_ERROR_NOT_READY);
  *static_cast<volatile unsigned*>(flag) = 1;
  CHECK(in_time);
  CHECK(done.get());
  CHECK(cuda().stream_synchronize(stream) == CUDA_SUCCESS);
  CHECK(cuda().stream_destroy(stream) == CUDA_SUCCESS);
  CHECK(cuda().mem_free_host(flag) == CUDA_SUCCESS);
}

TEST_CASE("work on GPU memory during another thread's stream capture leaves the capture valid",
          "[req:1.20]") {
  Result<PrimaryContext> context = PrimaryContext::retain(0);
  REQUIRE(context.ok());
  const Result<CudaScope> scope = CudaScope::enter(context->get());
  CUdeviceptr target = 0;
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  REQUIRE(cuda().mem_alloc(&target, 4096) == CUDA_SUCCESS);
  REQUIRE(cuda().stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuda().stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  REQUIRE(cuda().memset_d32_async(target, 1, 16, stream) == CUDA_SUCCESS);
  bool worked = false;
  std::thread([&] { worked = work().ok(); }).join();
  CHECK(worked);
  CHECK(work().ok());  // also on the capturing thread
  CHECK(cuda().memset_d32_async(target, 2, 16, stream) == CUDA_SUCCESS);
  CHECK(cuda().stream_end_capture(stream, &graph) == CUDA_SUCCESS);
  if (graph != nullptr) CHECK(cuda().graph_destroy(graph) == CUDA_SUCCESS);
  CHECK(cuda().stream_destroy(stream) == CUDA_SUCCESS);
  CHECK(cuda().mem_free(target) == CUDA_SUCCESS);
}

TEST_CASE("after 1,003 cycles of allocation a process holds what it held after three",
          "[req:1.21]") {
  std::size_t free_after_3 = 0;
  test::ProcessState state_after_3;
  for (int cycle = 1; cycle <= 1003; ++cycle) {
    REQUIRE(work().ok());
    if (cycle == 3) {
      free_after_3 = free_bytes();
      state_after_3 = test::process_state();
    }
  }
  CHECK(free_bytes() == free_after_3);
  CHECK(test::process_state() == state_after_3);
}

}  // namespace
}  // namespace oriel::window
