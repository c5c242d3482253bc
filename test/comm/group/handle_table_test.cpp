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

}  // namespace
}  // namespace oriel::test
