// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/memory/memory_host.hpp"

#include <csignal>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process_number.hpp"
#include "base/try.hpp"
#include "support/fault.hpp"
#include "support/process_state.hpp"
#include "window/mapping/flat_space.hpp"
#include "window/memory/host_allocation.hpp"

namespace oriel::window {
namespace {

Segment segment_of(const void* pointer, std::size_t bytes) {
  Result<std::vector<Segment>> found = memory().find_segments(pointer, bytes);
  REQUIRE(found.ok());
  REQUIRE(found->size() == 1);
  return std::move(found->front());
}

/// The allocation as a peer sees it.
AllocationRef import_of(const Allocation& allocation) {
  Result<ShareableHandle> handle = memory().export_handle(allocation);
  REQUIRE(handle.ok());
  Result<AllocationRef> imported =
      memory().import_handle(std::move(handle).value(), allocation.id(), allocation.bytes());
  REQUIRE(imported.ok());
  return std::move(imported).value();
}

Error refusal(ShareableHandle handle, std::size_t bytes) {
  Result<AllocationRef> imported = memory().import_handle(std::move(handle), {1, 2}, bytes);
  REQUIRE_FALSE(imported.ok());
  return std::move(imported).error();
}

TEST_CASE("memory is found by any pointer inside it", "[req:1.19]") {
  CHECK(memory().kind() == MemoryKind::host);
  CHECK(memory().device() == -1);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, kMiB, 2 * kMiB, 3 * kMiB}) {
    char* pointer = allocate(bytes);
    std::memset(pointer, 7, bytes);
    const Segment whole = segment_of(pointer, bytes);
    CHECK(reinterpret_cast<char*>(whole.base) == pointer);
    CHECK(whole.bytes >= bytes);
    CHECK(whole.bytes % memory().granularity() == 0);
    CHECK((bytes < 2 * kMiB || whole.bytes % (2 * kMiB) == 0));
    CHECK((bytes < 2 * kMiB || reinterpret_cast<std::uintptr_t>(pointer) % (2 * kMiB) == 0));
    CHECK(segment_of(pointer + bytes - 1, 1).allocation == whole.allocation);
    CHECK(whole.allocation->id().process == process_number());
    CHECK(whole.allocation->bytes() == whole.bytes);
    CHECK(memory().free(pointer).ok());
  }
}

TEST_CASE("two allocations never have one identity, even at one address", "[req:1.18]") {
  char* pointer = allocate(4096);
  const AllocationId first = segment_of(pointer, 1).allocation->id();
  CHECK(memory().free(pointer).ok());
  pointer = allocate(4096);
  CHECK(segment_of(pointer, 1).allocation->id() != first);
  CHECK(memory().free(pointer).ok());
}

TEST_CASE("what cannot be shared is refused with the call to use instead", "[req:1.19][req:1.38]") {
  char on_stack[16];
  const Result<std::vector<Segment>> foreign = memory().find_segments(on_stack, sizeof on_stack);
  REQUIRE_FALSE(foreign.ok());
  CHECK(foreign.error().code() == ErrorCode::invalid_argument);
  CHECK(foreign.error().hint().find("ncclMemAlloc") != std::string::npos);
  CHECK_FALSE(memory().find_segments(nullptr, 1).ok());

  char* pointer = allocate(4096);
  const Result<std::vector<Segment>> past = memory().find_segments(pointer + 1, 4096);
  REQUIRE_FALSE(past.ok());
  CHECK(past.error().message().find("4095") != std::string::npos);
  CHECK_FALSE(memory().find_segments(pointer, SIZE_MAX).ok());
  CHECK_FALSE(memory().find_segments(pointer + 4096, 1).ok());
  CHECK_FALSE(memory().free(pointer + 1).ok());
  CHECK(memory().free(pointer).ok());
  CHECK(memory().free(pointer).error().code() == ErrorCode::invalid_argument);
  CHECK_FALSE(memory().free(nullptr).ok());
  CHECK_FALSE(memory().allocate(0).ok());
  CHECK_FALSE(memory().allocate(SIZE_MAX).ok());
}

TEST_CASE("a peer's handle is checked before it is mapped", "[req:1.17]") {
  const std::size_t fds = test::count_fds();
  char* pointer = allocate(8192);
  Segment segment = segment_of(pointer, 1);
  CHECK(segment.bytes == 8192);
  const auto exported = [&] {
    Result<ShareableHandle> handle = memory().export_handle(*segment.allocation);
    REQUIRE(handle.ok());
    return std::move(handle).value();
  };
  CHECK(refusal(exported(), 4096).message().find("8192") != std::string::npos);
  CHECK(refusal(exported(), 12288).code() == ErrorCode::remote);
  CHECK(refusal(exported(), 8191).code() == ErrorCode::remote);
  CHECK(refusal(exported(), 0).code() == ErrorCode::remote);
  CHECK(refusal(exported(), SIZE_MAX).code() == ErrorCode::remote);
  CHECK(refusal(FabricHandle{}, 8192).code() == ErrorCode::remote);
  CHECK(refusal(OwnedFd(), 8192).code() == ErrorCode::remote);
  CHECK(refusal(OwnedFd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), 8192).code() ==
        ErrorCode::remote);
  CHECK(refusal(OwnedFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), 8192).code() ==
        ErrorCode::remote);
  {
    OwnedFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(::ftruncate(unsealed.get(), 8192) == 0);
    const std::string message = refusal(std::move(unsealed), 8192).message();
    CHECK(message.find("seals") != std::string::npos);
  }
  CHECK(memory().free(pointer).ok());
  segment.allocation = nullptr;
  CHECK(test::count_fds() == fds);
}

TEST_CASE("the memfd is closed on exec and can neither shrink nor grow", "[req:1.17]") {
  char* pointer = allocate(4096);
  Result<ShareableHandle> handle = memory().export_handle(*segment_of(pointer, 1).allocation);
  REQUIRE(handle.ok());
  const OwnedFd fd = std::get<OwnedFd>(std::move(handle).value());
  CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(::ftruncate(fd.get(), 0) != 0);
  CHECK(::ftruncate(fd.get(), 8192) != 0);
  CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
  CHECK(memory().free(pointer).ok());
}

TEST_CASE("an import holds no descriptor and can be mapped many times", "[req:1.17]") {
  const test::ProcessState before = test::process_state();
  {
    char* pointer = allocate(2 * kMiB);
    AllocationRef imported = import_of(*segment_of(pointer, 1).allocation);
    CHECK(test::count_fds() == before.fds + 1);  // the owner's
    CHECK(memory().free(pointer).ok());
    CHECK(test::count_fds() == before.fds);

    Result<std::unique_ptr<AddressRange>> range = memory().reserve(16 * kMiB, 2 * kMiB);
    REQUIRE(range.ok());
    std::byte* base = (*range)->base();
    auto first = memory().map(**range, base, imported);
    auto second = memory().map(**range, base + 4 * kMiB, imported);
    REQUIRE(first.ok());
    REQUIRE(second.ok());
    CHECK_FALSE(memory().export_handle(*imported).ok());
    imported = nullptr;
    base[123] = std::byte{42};
    CHECK(base[4 * kMiB + 123] == std::byte{42});
  }
  CHECK(test::process_state() == before);
}

TEST_CASE("a mapping stays inside its range, off its neighbours, and leaves no hole",
          "[req:1.15]") {
  const test::ProcessState before = test::process_state();
  {
    char* pointer = allocate(2 * kMiB);
    const AllocationRef own = segment_of(pointer, 1).allocation;
    const AllocationRef imported = import_of(*own);
    Result<std::unique_ptr<AddressRange>> range = memory().reserve(8 * kMiB, std::size_t{4} << 30);
    REQUIRE(range.ok());
    std::byte* base = (*range)->base();
    CHECK(reinterpret_cast<std::uintptr_t>(base) % (std::size_t{4} << 30) == 0);
    CHECK((*range)->bytes() == 8 * kMiB);
    {
      auto mapped = memory().map(**range, base + 2 * kMiB, own);
      REQUIRE(mapped.ok());
      CHECK_FALSE(memory().map(**range, base + 2 * kMiB, own).ok());
      CHECK_FALSE(memory().map(**range, base + 2 * kMiB - 4096, own).ok());
      CHECK_FALSE(memory().map(**range, base + 4 * kMiB - 4096, imported).ok());
      CHECK(memory().map(**range, base, own).ok());
      CHECK(memory().map(**range, base + 4 * kMiB, imported).ok());
      CHECK_FALSE(memory().map(**range, base + 7 * kMiB, own).ok());
      CHECK_FALSE(memory().map(**range, base + 8 * kMiB, own).ok());
      CHECK_FALSE(memory().map(**range, base - 4096, own).ok());
      CHECK_FALSE(memory().map(**range, base + 1, own).ok());
    }
    // Were there a hole, mmap could put something of somebody else's into it.
    for (std::size_t at = 0; at < 8 * kMiB; at += 2 * kMiB) {
      CHECK(::mmap(base + at, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                   -1, 0) == MAP_FAILED);
    }
    CHECK_FALSE(memory().reserve(0, 4096).ok());
    CHECK_FALSE(memory().reserve(4096, 3 * 4096).ok());
    CHECK_FALSE(memory().reserve(SIZE_MAX, 4096).ok());
    CHECK(memory().free(pointer).ok());
  }
  CHECK(test::process_state() == before);
}

/// Whether this kernel collapses a shared memory of one huge page, asked without Oriel.
std::string collapse_refusal() {
  const OwnedFd fd(::memfd_create("collapse", MFD_CLOEXEC));
  REQUIRE(::ftruncate(fd.get(), 2 * kMiB) == 0);
  void* raw = ::mmap(nullptr, 4 * kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(raw != MAP_FAILED);
  auto* const base = reinterpret_cast<char*>(
      (reinterpret_cast<std::uintptr_t>(raw) + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB));
  REQUIRE(::mmap(base, 2 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0) ==
          base);
  base[0] = 1;
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, from Linux 6.1 on
  const int status = ::madvise(base, 2 * kMiB, kCollapse) == 0 ? 0 : errno;
  ::munmap(raw, 4 * kMiB);
  return status == 0 ? "" : std::strerror(status);
}

/// The kB that /proc/self/smaps gives for `field` in the mapping that begins at `pointer`.
std::size_t smaps_kib(const char* pointer, const std::string& field) {
  std::ifstream smaps("/proc/self/smaps");
  char start[20];
  std::snprintf(start, sizeof start, "%zx-", reinterpret_cast<std::size_t>(pointer));
  bool inside = false;
  std::size_t kib = 0;
  for (std::string line; std::getline(smaps, line);) {
    if (line.rfind(start, 0) == 0) inside = true;
    if (inside && std::sscanf(line.c_str(), (field + ": %zu").c_str(), &kib) == 1) return kib;
  }
  FAIL("no " << field << " in /proc/self/smaps");
  return 0;
}

TEST_CASE("memory from 2 MiB up is in huge pages where the kernel can collapse", "[req:1.19]") {
  const std::string refusal = collapse_refusal();
  if (!refusal.empty()) {
    WARN("skipped: this kernel does not collapse shared memory: " << refusal);
    return;
  }
  char* pointer = allocate(16 * kMiB);
  for (std::size_t at = 0; at < 16 * kMiB; at += 4096) pointer[at] = 1;
  // Some of the pages may be missing on a machine whose memory is in pieces.
  CHECK(smaps_kib(pointer, "ShmemPmdMapped") >= 2048);
  CHECK(memory().free(pointer).ok());
}

TEST_CASE("a forked child draws a number of its own and uses what it inherits", "[req:1.18]") {
  char* pointer = allocate(4096);
  const std::uint64_t number = process_number();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    bool good = process_number() != number && process_number() == process_number();
    Result<std::vector<Segment>> inherited = memory().find_segments(pointer, 4096);
    good = good && !inherited.ok() && inherited.error().code() == ErrorCode::invalid_usage &&
           inherited.error().message().find("before this process was forked") != std::string::npos;
    Result<void*> made = memory().allocate(4096);
    good = good && made.ok();
    if (good) {
      Result<std::vector<Segment>> fresh = memory().find_segments(*made, 1);
      good = fresh.ok() && fresh->front().allocation->id().process == process_number();
    }
    pointer[0] = 'c';
    good = good && memory().free(pointer).ok();
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(pointer[0] == 'c');
  CHECK(segment_of(pointer, 1).base == reinterpret_cast<std::byte*>(pointer));
  CHECK(memory().free(pointer).ok());
}

/// Everything that registration does with a memory.
Status work() {
  ORIEL_TRY(void* pointer, memory().allocate(3 * kMiB));
  const auto run = [&]() -> Status {
    ORIEL_TRY(std::vector<Segment> segments, memory().find_segments(pointer, kMiB));
    ORIEL_TRY(ShareableHandle handle, memory().export_handle(*segments[0].allocation));
    ORIEL_TRY(AllocationRef imported,
              memory().import_handle(std::move(handle), {1, 1}, segments[0].bytes));
    ORIEL_TRY(auto space, FlatSpace::acquire(memory(), {{1, -1}, {2, -1}}, kSlotUnitBytes));
    ORIEL_TRY(auto own, space->map(0, 0, segments[0].allocation));
    ORIEL_TRY(auto peer, space->map(1, 0, imported));
    *own->base() = std::byte{17};
    if (*peer->base() != std::byte{17}) return Error(ErrorCode::internal, "not the same memory");
    return {};
  };
  Status outcome = run();
  const Status freed = memory().free(pointer);
  return outcome.ok() ? freed : outcome;
}

TEST_CASE("whichever system call fails, nothing leaks", "[req:1.41]") {
  REQUIRE(work().ok());
  const test::ProcessState before = test::process_state();
  long calls = 0;
  int failures = 0;
  for (long k = 0; k == 0 || k <= calls; ++k) {
    test::FaultPlan plan;
    plan.fail_at = k;
    plan.status = ENOMEM;
    {
      const test::ScopedSystemFaults faults(plan);
      const Status outcome = work();
      if (k == 0) {
        REQUIRE(outcome.ok());
        calls = plan.calls;
      } else if (!outcome.ok()) {
        ++failures;
        CAPTURE(k, plan.failed.load());
        CHECK(outcome.error().code() == ErrorCode::system);
        CHECK(outcome.error().native().value == ENOMEM);
      }
    }
    CAPTURE(k, plan.failed.load());
    CHECK(plan.hit() == (k != 0));
    CHECK(test::process_state() == before);
  }
  CHECK(calls > 20);
  CHECK(failures > 10);  // the others are advice on pages, and calls that give something up
}

TEST_CASE("nothing is left behind after kill -9", "[req:1.17]") {
  const auto shared_files = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      names.insert(entry.path().string());
    }
    return names;
  };
  const std::set<std::string> before = shared_files();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    static_cast<void>(memory().allocate(2 * kMiB));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(shared_files() == before);
}

TEST_CASE("10,000 allocations, imports and mappings leave nothing behind", "[req:1.21]") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const test::ProcessState before = test::process_state();
  {
    Result<std::unique_ptr<AddressRange>> range = memory().reserve(64 * kMiB, 4096);
    REQUIRE(range.ok());
    std::byte* base = (*range)->base();
    struct Live {
      std::unique_ptr<Mapping> mapping;
      AllocationRef held;
    };
    std::vector<Live> live(32);
    for (int i = 0; i < 10000; ++i) {
      const std::size_t slot = random() % live.size();
      live[slot] = {};
      char* pointer = allocate((1 + random() % 8) * 4096);
      AllocationRef allocation = segment_of(pointer, 1).allocation;
      if (random() % 2 == 0) allocation = import_of(*allocation);
      auto mapped = memory().map(**range, base + slot * 2 * kMiB, allocation);
      REQUIRE(mapped.ok());
      *(*mapped)->base() = std::byte{1};
      CHECK(*pointer == 1);
      live[slot].mapping = std::move(mapped).value();
      if (random() % 2 == 0) live[slot].held = std::move(allocation);
      CHECK(memory().free(pointer).ok());
    }
  }
  CHECK(test::process_state() == before);
}

}  // namespace
}  // namespace oriel::window
