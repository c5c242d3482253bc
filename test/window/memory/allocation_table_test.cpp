// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/memory/allocation_table.hpp"

#include <atomic>
#include <optional>
#include <thread>

#include <catch2/catch.hpp>

#include "base/system_table.hpp"
#include "base/try.hpp"
#include "boot/session/served_id.hpp"
#include "window/memory/memory_host.hpp"
#include "window/memory/sizes.hpp"
#include "window/registration/window_ranks.hpp"

namespace oriel::window {
namespace {

class Bare final : public Allocation {
 public:
  explicit Bare(AllocationId id) : Allocation(id, kPage, MemoryKind::host) {}
};

AllocationRef bare(std::uint64_t serial) {
  return std::make_shared<Bare>(AllocationId{~std::uint64_t{0}, serial});
}

}  // namespace

TEST_CASE("an allocation is found as long as anybody holds it, also one that came second",
          "[req:1.18]") {
  AllocationTable& table = AllocationTable::instance();
  AllocationRef first = bare(1);
  const AllocationId id = first->id();
  first = table.publish(first);
  AllocationRef second = table.publish(bare(1));
  CHECK(second == first);
  first.reset();
  CHECK(table.find(id) == second);
  second.reset();
  CHECK(table.find(id) == nullptr);
  second = table.publish(bare(1));
  CHECK(table.find(id) == second);
}

namespace {

/// Allocator that counts the blocks still needed by any reference, strong or weak.
template <class T>
struct Counted {
  using value_type = T;
  explicit Counted(int& blocks) : count(&blocks) {}
  template <class U>
  Counted(const Counted<U>& other) : count(other.count) {}
  bool operator==(const Counted&) const = default;
  T* allocate(std::size_t n) {
    ++*count;
    return std::allocator<T>().allocate(n);
  }
  void deallocate(T* memory, std::size_t n) {
    --*count;
    std::allocator<T>().deallocate(memory, n);
  }
  int* count;
};

}  // namespace

TEST_CASE("allocations that nobody holds any more are forgotten by and by", "[req:1.18]") {
  static int known = 0;  // static: the table keeps the last blocks until exit
  for (std::uint64_t serial = 100; serial < 1100; ++serial) {
    const AllocationId id{~std::uint64_t{0}, serial};
    static_cast<void>(
        AllocationTable::instance().publish(std::allocate_shared<Bare>(Counted<Bare>(known), id)));
  }
  CHECK(known < 200);
}

TEST_CASE("an allocation is destroyed when its last window ends, at once without windows",
          "[req:1.18]") {
  AllocationTable& table = AllocationTable::instance();
  const AllocationId one{~std::uint64_t{0}, 5}, other{~std::uint64_t{0}, 6};
  table.occupy(one);
  table.occupy(one);
  CHECK_FALSE(table.occupied(other));
  table.vacate(one);
  CHECK(table.occupied(one));
  auto thing = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = thing;
  table.destroy_when_vacant(one, std::move(thing));
  CHECK_FALSE(seen.expired());
  table.vacate(one);
  CHECK_FALSE(table.occupied(one));
  CHECK(seen.expired());
  table.destroy_when_vacant(one, std::make_shared<int>(2));  // destroyed at once
}

namespace {

/// Rank 0's two communicators, on a thread each, import the same memory of ranks 1 and 2. The slow
/// one blocks in its first import until the fast one has registered. It blocks after its second
/// import until the fast one has deregistered.
enum class Moment { begin, slow_imports, fast_registered, slow_has_imported, fast_deregistered };
std::atomic<Moment> moment{Moment::begin};
thread_local bool is_slow = false;

void wait_for(Moment wanted) {
  while (moment < wanted) std::this_thread::yield();
}

void reach(Moment reached, Moment then_wait_for) {
  moment = reached;
  wait_for(then_wait_for);
}

SystemTable staged_table() {
  SystemTable table = real_system_table();
  table.fstat = [](int fd, struct stat* out) {  // called for a descriptor during its import
    if (is_slow && moment == Moment::begin) {
      reach(Moment::slow_imports, Moment::fast_registered);
    }
    return real_system_table().fstat(fd, out);
  };
  table.close = [](int fd) {  // called at the end of each import
    static int closed = 0;
    if (is_slow && moment == Moment::fast_registered && ++closed == 2) {
      reach(Moment::slow_has_imported, Moment::fast_deregistered);
    }
    return real_system_table().close(fd);
  };
  return table;
}

}  // namespace

TEST_CASE("a peer's memory stays when the communicator goes that imported it first", "[req:1.18]") {
  const ServedId fast_id;
  check_all_ok(run_ranks({1, 1, 1}, {}, [&](WindowRank& slow) -> Status {
    ORIEL_TRY(const auto fast, WindowRank::join(fast_id.value(), slow.rank(), slow.size(), {}));
    const HostBuffer buffer(8 * kPage);
    const SystemTable table = staged_table();
    std::optional<ScopedSystemTable> scoped;
    if (slow.rank() == 0) scoped.emplace(table);
    Status fast_outcome;
    std::jthread thread([&] {
      if (slow.rank() == 0) wait_for(Moment::slow_imports);
      const auto window = fast->register_one(buffer.at(), 8 * kPage);
      if (!window.ok()) {
        fast_outcome = Error(window.error());
        return;
      }
      if (slow.rank() == 0) reach(Moment::fast_registered, Moment::slow_has_imported);
      fast_outcome = fast->manager().deregister(window->handle);
      moment = Moment::fast_deregistered;
    });
    is_slow = slow.rank() == 0;
    const auto window = slow.register_one(buffer.at(), 8 * kPage);
    is_slow = false;
    thread.join();
    ORIEL_CHECK(std::move(fast_outcome));
    if (!window.ok()) return Error(window.error());
    ORIEL_EXPECT(slow.rank() != 0 || moment == Moment::fast_deregistered);
    window->user[0] = static_cast<std::byte>(7 + slow.rank());
    ORIEL_CHECK(slow.barrier());
    for (int rank = 0; rank < slow.size(); ++rank) {
      ORIEL_EXPECT(slow.peer(*window, rank)[0] == static_cast<std::byte>(7 + rank));
    }
    ORIEL_CHECK(slow.barrier());
    ORIEL_CHECK(slow.manager().deregister(window->handle));
    return slow.barrier();
  }));
}

}  // namespace oriel::window
