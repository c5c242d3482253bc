// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/memory/memory_host.hpp"

#include <cstring>
#include <fstream>

#include <unistd.h>

#include "support/in_child.hpp"
#include "window/memory/memory_promises.hpp"

namespace oriel::window {

TEST_CASE("host memory passes the tests of every kind of memory",
          "[req:1.10][req:1.15][req:1.17][req:1.18][req:1.19][req:1.21][req:1.38]") {
  CHECK(host_memory().kind() == MemoryKind::host);
  CHECK(host_memory().device() == -1);
  check_every_promise(host_memory());
}

TEST_CASE("a memfd is closed on exec, can neither shrink nor grow, and is exported by its owner",
          "[req:1.17]") {
  char* const pointer = allocate(host_memory(), 8192);
  const AllocationRef own = segments_of(host_memory(), pointer, 1).at(0).allocation;
  const OwnedFd fd = std::get<OwnedFd>(exported(host_memory(), *own));
  CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(::ftruncate(fd.get(), 0) != 0);
  CHECK(::ftruncate(fd.get(), 16384) != 0);
  CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
  CHECK_FALSE(host_memory().export_handle(*import_of(host_memory(), *own)).ok());
  const auto why = [](OwnedFd handle, std::size_t bytes) {
    return host_memory().import_handle(std::move(handle), {1, 2}, bytes).error().message();
  };
  CHECK(why(std::get<OwnedFd>(exported(host_memory(), *own)), 4096).find("8192") !=
        std::string::npos);
  OwnedFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(unsealed.get(), 8192) == 0);
  CHECK(why(std::move(unsealed), 8192).find("seals") != std::string::npos);
  CHECK(host_memory().free(pointer).ok());
}

namespace {

/// Returns "" if this kernel collapses a shared memory of one huge page, or the error. Does not use
/// Oriel.
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

/// Returns the kB in /proc/self/smaps for `field` of the mapping that begins at `pointer`.
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

}  // namespace

TEST_CASE("memory from 2 MiB up is in huge pages where the kernel can collapse", "[req:1.19]") {
  const std::string cannot = collapse_refusal();
  if (!cannot.empty()) {
    WARN("skipped: this kernel does not collapse shared memory: " << cannot);
    return;
  }
  char* const pointer = allocate(host_memory(), 16 * kMiB);
  for (std::size_t at = 0; at < 16 * kMiB; at += 4096) pointer[at] = 1;
  // On a machine with fragmented memory some huge pages may be missing.
  CHECK(smaps_kib(pointer, "ShmemPmdMapped") >= 2048);
  CHECK(host_memory().free(pointer).ok());
}

TEST_CASE("a forked child draws a number of its own and uses what it inherits", "[req:1.18]") {
  char* const pointer = allocate(host_memory(), 4096);
  const std::uint64_t number = process_number();
  test::in_child([&] {
    const auto must = [](bool holds) {
      if (!holds) throw std::runtime_error("not so");
    };
    must(process_number() != number && process_number() == process_number());
    const auto inherited = host_memory().find_segments(pointer, 4096);
    must(!inherited.ok() && inherited.error().code() == ErrorCode::invalid_usage);
    must(inherited.error().message().find("before this process was forked") != std::string::npos);
    void* const made = host_memory().allocate(4096).value();
    const auto fresh = host_memory().find_segments(made, 1);
    must(fresh.ok() && fresh->front().allocation->id().process == process_number());
    pointer[0] = 'c';
    must(host_memory().free(pointer).ok());
  });
  CHECK(pointer[0] == 'c');
  CHECK(segments_of(host_memory(), pointer, 1).at(0).base == reinterpret_cast<std::byte*>(pointer));
  CHECK(host_memory().free(pointer).ok());
}

TEST_CASE("any failed system call of host memory leaks nothing", "[req:1.41]") {
  REQUIRE(use_memory(host_memory()).ok());
  const test::ProcessState before = test::process_state();
  int failures = 0;
  const long calls = test::fail_each_call(
      ENOMEM,
      [](test::FaultPlan& plan) {
        const test::ScopedSystemFaults faults(plan);
        return use_memory(host_memory());
      },
      [&](const test::FaultPlan& plan, const Status& outcome) {
        failures += !outcome.ok();
        CHECK((outcome.ok() || outcome.error().code() == ErrorCode::system));
        CHECK(plan.hit() == (plan.fail_at != 0));
        CHECK(test::process_state() == before);
      });
  CHECK(calls > 20);
  CHECK(failures > 10);  // the others are page advice, and calls that free something
}

}  // namespace oriel::window
