// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/handle_table.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

namespace oriel::test {
namespace {

using Table = comm::HandleTable<int, void*>;

TEST_CASE("handles stand for their objects until they are removed, and never again",
          "[req:1.31][req:5.6]") {
  Table table;
  std::vector<void*> handles;
  for (int i = 0; i < 1000; ++i) handles.push_back(table.add(std::make_shared<int>(i)));
  CHECK(std::set<void*>(handles.begin(), handles.end()).size() == 1000);
  for (int i = 0; i < 1000; ++i) {
    const auto found = table.get(handles[static_cast<std::size_t>(i)]);
    REQUIRE(found != nullptr);
    REQUIRE(*found == i);
  }
  CHECK(*table.remove(handles[70]) == 70);
  CHECK(table.remove(handles[70]) == nullptr);
  CHECK(table.get(handles[70]) == nullptr);
  void* const again = table.reserve();  // reuses the slot
  CHECK(again != handles[70]);
  CHECK(table.get(again) == nullptr);
  CHECK(table.get(handles[70]) == nullptr);
  table.set(handles[70], std::make_shared<int>(-1));
  CHECK(table.get(again) == nullptr);
  table.set(again, std::make_shared<int>(7));
  CHECK(*table.get(again) == 7);

  CHECK(table.get(nullptr) == nullptr);
  CHECK(table.get(reinterpret_cast<void*>(std::uintptr_t{1'000'000})) == nullptr);
  CHECK(table.get(reinterpret_cast<void*>(~std::uintptr_t{0})) == nullptr);
}

TEST_CASE("threads make, find and end handles of one table at once", "[req:5.6]") {
  Table table;
  void* const kept = table.add(std::make_shared<int>(42));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<void*> own;
      for (int i = 0; i < 500; ++i) {
        own.push_back(table.add(std::make_shared<int>(1000 * t + i)));
        const auto seen = table.get(kept);
        if (seen == nullptr || *seen != 42) ++wrong;
        if (i % 3 != 0) continue;
        const auto ended = table.remove(own.back());
        if (ended == nullptr || *ended != 1000 * t + i || table.get(own.back()) != nullptr) ++wrong;
        own.pop_back();
      }
      for (void* const handle : own) {
        const auto found = table.remove(handle);
        if (found == nullptr || *found / 1000 != t) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a pinned object outlives its handle, and its place is free after the last pin",
          "[req:5.22]") {
  Table table;
  const auto object = std::make_shared<int>(5);
  void* const handle = table.add(object);
  {
    const auto first = table.pin(handle);
    const auto second = table.pin(handle);
    REQUIRE(first.get() == object.get());
    CHECK(table.remove(handle) == object);
    CHECK(table.pin(handle).get() == nullptr);
    CHECK(table.get(handle) == nullptr);
    CHECK(object.use_count() == 2);  // the place still has it
    CHECK(*second.shared() == 5);
    CHECK(table.add(std::make_shared<int>(6)) != handle);  // in another place
  }
  CHECK(object.use_count() == 1);
  void* const again = table.add(std::make_shared<int>(7));  // in the place of the first
  CHECK(*table.pin(again) == 7);
  CHECK(table.pin(handle).get() == nullptr);
  void* const reserved = table.reserve();
  CHECK(table.pin(reserved).get() == nullptr);  // no object yet
  CHECK(table.pin(nullptr).get() == nullptr);
}

TEST_CASE("threads pin objects while others remove them", "[req:5.22]") {
  Table table;
  std::atomic<void*> handle = table.add(std::make_shared<int>(0));
  std::atomic<int> wrong = 0;
  std::atomic<bool> ended = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!ended) {
        const auto pin = table.pin(handle);
        if (pin.get() != nullptr && *pin < 0) ++wrong;
      }
    });
  }
  for (int i = 1; i <= 20'000; ++i) {
    void* const old = handle.exchange(table.add(std::make_shared<int>(i)));
    const auto removed = table.remove(old);
    if (removed == nullptr || *removed != i - 1) ++wrong;
  }
  ended = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace oriel::test
