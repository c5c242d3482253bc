// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/mman.h>

#include "base/process_number.hpp"
#include "base/try.hpp"
#include "support/fail_each_call.hpp"
#include "support/process_state.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"
#include "window/mapping/flat_space.hpp"
#include "window/memory/sizes.hpp"

/// Checks of the guarantees of every memory; run on the host's memory and on a model of the driver.
namespace oriel::window {

inline char* allocate(Memory& memory, std::size_t bytes, Backing backing = Backing::ready) {
  const auto made = memory.allocate(bytes, backing);
  REQUIRE((made.ok() ? "ok" : made.error().to_string()) == "ok");
  return static_cast<char*>(*made);
}

inline std::vector<Segment> segments_of(Memory& memory, const void* pointer, std::size_t bytes) {
  Result<std::vector<Segment>> found = memory.find_segments(pointer, bytes);
  REQUIRE(found.ok());
  return std::move(found).value();
}

inline Error refusal(Memory& memory, const void* pointer, std::size_t bytes) {
  Result<std::vector<Segment>> found = memory.find_segments(pointer, bytes);
  REQUIRE_FALSE(found.ok());
  return std::move(found).error();
}

inline ShareableHandle exported(Memory& memory, const Allocation& allocation) {
  Result<ShareableHandle> handle = memory.export_handle(allocation);
  REQUIRE(handle.ok());
  return std::move(handle).value();
}

/// Imports the allocation as a peer does.
inline AllocationRef import_of(Memory& memory, const Allocation& allocation) {
  Result<AllocationRef> imported =
      memory.import_handle(exported(memory, allocation), allocation.id(), allocation.bytes());
  REQUIRE(imported.ok());
  return std::move(imported).value();
}

inline std::unique_ptr<AddressRange> reserve(Memory& memory, std::size_t bytes,
                                             std::size_t alignment) {
  auto range = memory.reserve(bytes, alignment);
  REQUIRE(range.ok());
  return std::move(range).value();
}

inline bool is_free_address(const std::byte* at) {
  void* const got = ::mmap(const_cast<std::byte*>(at), 4096, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == MAP_FAILED) return false;
  ::munmap(got, 4096);
  return true;
}

inline void check_found_by_any_pointer(Memory& memory) {
  const std::size_t unit = memory.granularity();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, kMiB, 2 * kMiB, 3 * kMiB}) {
    char* const pointer = allocate(memory, bytes);
    pointer[0] = pointer[bytes - 1] = 7;
    const Segment whole = segments_of(memory, pointer, bytes).at(0);
    CHECK(reinterpret_cast<char*>(whole.base) == pointer);
    CHECK(whole.bytes >= bytes);
    CHECK(whole.bytes % (bytes < 2 * kMiB ? unit : 2 * kMiB) == 0);
    CHECK((bytes < 2 * kMiB || reinterpret_cast<std::uintptr_t>(pointer) % (2 * kMiB) == 0));
    CHECK(segments_of(memory, pointer + bytes - 1, 1).at(0).allocation == whole.allocation);
    CHECK(whole.allocation->id().process == process_number());
    CHECK(whole.allocation->bytes() == whole.bytes);
    CHECK(whole.allocation->kind() == memory.kind());
    CHECK(memory.free(pointer).ok());
  }
}

inline void check_identities(Memory& memory) {
  AllocationId last;
  for (int i = 0; i < 3; ++i) {
    char* const pointer = allocate(memory, 4096);
    const AllocationId id = segments_of(memory, pointer, 1).at(0).allocation->id();
    CHECK(id != last);
    last = id;
    CHECK(memory.free(pointer).ok());
  }
}

inline void check_wrong_calls(Memory& memory) {
  char on_stack[16];
  for (const void* const foreign : {static_cast<const void*>(on_stack), {}}) {
    const Error error = refusal(memory, foreign, 16);
    CHECK(error.code() == ErrorCode::invalid_argument);
    CHECK(error.hint().find("ncclMemAlloc") != std::string::npos);
  }
  const std::size_t unit = memory.granularity();
  char* const pointer = allocate(memory, unit);
  const std::string past = refusal(memory, pointer + 1, unit).message();
  CHECK(past.find("past the end") != std::string::npos);
  CHECK(past.find(std::to_string(unit - 1) + " bytes are left") != std::string::npos);
  CHECK(refusal(memory, pointer, SIZE_MAX).code() == ErrorCode::invalid_argument);
  CHECK_FALSE(memory.find_segments(pointer + unit, 1).ok());
  for (char* const wrong : {pointer + 1, on_stack, static_cast<char*>(nullptr)}) {
    CHECK(memory.free(wrong).error().code() == ErrorCode::invalid_argument);
  }
  CHECK(memory.free(pointer).ok());
  CHECK(memory.free(pointer).error().code() == ErrorCode::invalid_argument);
  CHECK_FALSE(memory.allocate(0).ok());
  CHECK_FALSE(memory.allocate(SIZE_MAX).ok());
  CHECK_FALSE(memory.reserve(0, unit).ok());
  CHECK_FALSE(memory.reserve(unit, 3 * unit).ok());
  CHECK_FALSE(memory.reserve(SIZE_MAX, unit).ok());
}

inline void check_announced_handles(Memory& memory) {
  const std::size_t bytes = 2 * memory.granularity();
  char* const pointer = allocate(memory, bytes);
  const AllocationRef own = segments_of(memory, pointer, 1).at(0).allocation;
  REQUIRE(own->bytes() == bytes);
  const auto import = [&](ShareableHandle handle, std::size_t announced) {
    return memory.import_handle(std::move(handle), {7, 7}, announced).ok();
  };
  for (const std::size_t wrong : {std::size_t{0}, bytes - 1, SIZE_MAX}) {
    CHECK_FALSE(import(exported(memory, *own), wrong));
  }
  CHECK_FALSE(import(OwnedFd(), bytes));
  CHECK_FALSE(import(OwnedFd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), bytes));
  CHECK_FALSE(import(OwnedFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), bytes));
  OwnedFd foreign(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(foreign.get(), static_cast<off_t>(bytes)) == 0);
  CHECK_FALSE(import(std::move(foreign), bytes));
  CHECK_FALSE(import(FabricHandle{}, bytes));
  // A size that is too large is refused by the import or, at the latest, by the mapping.
  const auto larger = memory.import_handle(exported(memory, *own), {7, 7}, 2 * bytes);
  const auto range = reserve(memory, 2 * bytes, memory.granularity());
  CHECK_FALSE((larger.ok() && memory.map(*range, range->base(), *larger).ok()));
  CHECK(memory.map(*range, range->base(), own).ok());
  CHECK(memory.free(pointer).ok());
}

/// A peer's memory outlives its owner's free() and can be mapped any number of times.
inline void check_imports(Memory& memory) {
  const std::size_t fds = test::count_fds();
  char* const pointer = allocate(memory, 2 * kMiB);
  std::memset(pointer, 7, 2 * kMiB);
  AllocationRef imported = import_of(memory, *segments_of(memory, pointer, 1).at(0).allocation);
  CHECK(memory.free(pointer).ok());
  if (memory.kind() == MemoryKind::host) CHECK(test::count_fds() == fds);
  const auto range = reserve(memory, 16 * kMiB, 2 * kMiB);
  std::byte* const base = range->base();
  const auto first = memory.map(*range, base, imported);
  const auto second = memory.map(*range, base + 4 * kMiB, imported);
  REQUIRE((first.ok() && second.ok()));
  imported = nullptr;
  CHECK(base[2 * kMiB - 1] == std::byte{7});
  base[123] = std::byte{42};
  CHECK(base[4 * kMiB + 123] == std::byte{42});
}

/// A mapping stays inside its range, does not overlap its neighbours, and leaves no hole.
inline void check_places(Memory& memory) {
  constexpr std::size_t kAlignment = std::size_t{4} << 30;
  const std::size_t unit = memory.granularity();
  char* const pointer = allocate(memory, 2 * kMiB);
  const AllocationRef own = segments_of(memory, pointer, 1).at(0).allocation;
  const AllocationRef imported = import_of(memory, *own);
  const auto range = reserve(memory, 8 * kMiB, kAlignment);
  std::byte* const base = range->base();
  CHECK(reinterpret_cast<std::uintptr_t>(base) % kAlignment == 0);
  {
    const auto mapped = memory.map(*range, base + 2 * kMiB, own);
    REQUIRE(mapped.ok());
    const auto maps = [&](std::byte* at, const AllocationRef& what) {
      return memory.map(*range, at, what).ok();
    };
    CHECK_FALSE(maps(base + 2 * kMiB, own));
    if (unit < 2 * kMiB) {
      CHECK_FALSE(maps(base + 2 * kMiB - unit, own));
      CHECK_FALSE(maps(base + 4 * kMiB - unit, imported));
      CHECK_FALSE(maps(base + 8 * kMiB - unit, own));
    }
    CHECK(maps(base, own));
    CHECK(maps(base + 4 * kMiB, imported));
    CHECK_FALSE(maps(base + 8 * kMiB, own));
    CHECK_FALSE(maps(base - unit, own));
    CHECK_FALSE(maps(base + 1, own));
  }
  // In a hole, mmap could place an unrelated mapping.
  for (std::size_t at = 0; at < 8 * kMiB; at += 2 * kMiB) CHECK_FALSE(is_free_address(base + at));
  CHECK(memory.free(pointer).ok());
}

inline void check_random_cycles(Memory& memory) {
  const std::uint64_t seed = test::test_seed();
  std::mt19937 random(seed);
  const auto range = reserve(memory, 512 * kMiB, 2 * kMiB);
  struct Live {
    std::unique_ptr<Mapping> mapping;
    AllocationRef held;
  };
  std::vector<Live> live(32);
  for (int i = 0; i < test::repeats(2000); ++i) {
    const std::size_t slot = random() % live.size();
    live[slot] = {};
    char* const pointer = allocate(memory, (1 + random() % 8) * memory.granularity());
    AllocationRef allocation = segments_of(memory, pointer, 1).at(0).allocation;
    if (random() % 2 == 0) allocation = import_of(memory, *allocation);
    auto mapped = memory.map(*range, range->base() + slot * 16 * kMiB, allocation);
    REQUIRE(mapped.ok());
    *(*mapped)->base() = std::byte{1};
    REQUIRE(*pointer == 1);
    live[slot].mapping = std::move(mapped).value();
    if (random() % 2 == 0) live[slot].held = std::move(allocation);
    REQUIRE(memory.free(pointer).ok());
  }
}

inline void check_threads(Memory& memory) {
  std::vector<std::thread> threads;
  std::vector<int> failures(4, 0);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const Result<void*> made = memory.allocate(2 * kMiB, Backing::on_demand);
        if (!made.ok() || !memory.find_segments(*made, 1).ok() || !memory.free(*made).ok()) {
          ++failures[t];
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failures == std::vector<int>(4, 0));
}

inline void check_every_promise(Memory& memory) {
  const test::ProcessState before = test::process_state();
  SECTION("memory is found by any pointer inside it") {
    check_found_by_any_pointer(memory);
  }
  SECTION("two allocations never have one identity, even at one address") {
    check_identities(memory);
  }
  SECTION("what no window can stand on is refused, with the call to use instead") {
    check_wrong_calls(memory);
  }
  SECTION("a peer's handle is checked against what was announced") {
    check_announced_handles(memory);
  }
  SECTION("a peer's memory outlives its owner and is mapped many times") {
    check_imports(memory);
  }
  SECTION("mappings stay inside their range, off their neighbours, and leave no hole") {
    check_places(memory);
  }
  SECTION("random allocations, imports and mappings leave nothing behind") {
    check_random_cycles(memory);
  }
  SECTION("threads of one process use one memory at once") {
    check_threads(memory);
  }
  CHECK(test::process_state() == before);
}

/// Makes every memory call of a registration.
inline Status use_memory(Memory& memory) {
  ORIEL_TRY(void* pointer, memory.allocate(3 * kMiB));
  const auto run = [&]() -> Status {
    const int device = memory.device();
    ORIEL_TRY(std::vector<Segment> segments, memory.find_segments(pointer, kMiB));
    ORIEL_TRY(ShareableHandle handle, memory.export_handle(*segments[0].allocation));
    ORIEL_TRY(AllocationRef imported,
              memory.import_handle(std::move(handle), {1, 1}, segments[0].bytes));
    ORIEL_TRY(auto space, FlatSpace::acquire(memory, {{1, device}, {2, device}}, kSlotUnitBytes));
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

}  // namespace oriel::window
