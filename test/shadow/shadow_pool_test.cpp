// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "shadow/shadow_pool.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include <catch2/catch.hpp>

namespace oriel::shadow {
namespace {

/// A backend with separate objects and copies, as on a GPU. Counts copies and can be made to fail.
class SplitBackend final : public Backend {
 public:
  struct SplitChunk final : Chunk {
    explicit SplitChunk(std::size_t bytes) : objects(bytes, std::byte{0xee}), copies(bytes) {}
    std::byte* device() const override { return const_cast<std::byte*>(objects.data()); }
    std::byte* host() const override { return const_cast<std::byte*>(copies.data()); }
    std::size_t bytes() const override { return objects.size(); }
    std::vector<std::byte> objects;
    std::vector<std::byte> copies;
  };
  Result<std::unique_ptr<Chunk>> make_chunk(std::size_t bytes) override {
    if (fail) return Error(ErrorCode::cuda, "no memory");
    objects += 64 * pages_per_chunk;  // a page holds 64 objects
    return std::unique_ptr<Chunk>(std::make_unique<SplitChunk>(bytes * pages_per_chunk));
  }
  Status upload(std::span<const Upload> uploads) override {
    if (fail) return Error(ErrorCode::cuda, "no copy");
    if (during_upload) during_upload();
    for (const Upload& next : uploads) {
      // Skips unchanged bytes. On a device, rewriting them is invisible to readers, but the thread
      // sanitizer would report a race here.
      for (std::size_t i = 0; i < next.bytes; ++i) {
        if (next.device[i] != next.host[i]) next.device[i] = next.host[i];
      }
      ++copies;
    }
    return {};
  }
  std::size_t pages_per_chunk = 4;
  std::size_t objects = 0;  // capacity of all chunks
  int copies = 0;
  bool fail = false;
  std::function<void()> during_upload;
};

constexpr std::uint64_t kNothingYet = 0xeeeeeeeeeeeeeeee;  // initial content of a chunk

struct Object {
  std::uint64_t values[5];
};

Object object_of(std::uint64_t value) {
  return {{value, value + 1, value + 2, value + 3, value}};
}

struct Fixture {
  explicit Fixture(std::size_t pages_per_chunk = 4) {
    auto made = std::make_unique<SplitBackend>();
    made->pages_per_chunk = pages_per_chunk;
    backend = made.get();
    pool = std::make_shared<ShadowPool>(std::move(made), sizeof(Object), 16);
  }
  Object* make(std::uint64_t value) {
    const Object initial = object_of(value);
    Result<void*> made = pool->allocate(std::as_bytes(std::span(&initial, 1)));
    REQUIRE(made.ok());
    return static_cast<Object*>(*made);
  }
  const Object* copy(const Object* object) const {
    return static_cast<const Object*>(pool->find(object));
  }
  SplitBackend* backend;
  std::shared_ptr<ShadowPool> pool;
};

TEST_CASE("an object follows its copy with the next flush", "[req:1.20]") {
  Fixture fixture;
  Object* object = fixture.make(7);
  CHECK(reinterpret_cast<std::uintptr_t>(object) % 16 == 0);
  CHECK(fixture.copy(object)->values[1] == 8);
  CHECK(object->values[1] == kNothingYet);
  REQUIRE(fixture.pool->flush().ok());
  CHECK(object->values[1] == 8);
  CHECK(fixture.backend->copies == 1);
  const auto* const page = reinterpret_cast<const std::byte*>(object);
  for (std::size_t i = 48; i < 64 * 48; ++i) REQUIRE(page[i] == std::byte{0});  // rest of the page
  const std::uint64_t nine = 9;
  REQUIRE(fixture.pool->write(object, 8, std::as_bytes(std::span(&nine, 1))).ok());
  CHECK(fixture.copy(object)->values[1] == 9);
  CHECK(object->values[1] == 8);
  REQUIRE(fixture.pool->flush().ok());
  CHECK(object->values[1] == 9);
  CHECK(object->values[0] == 7);
}

TEST_CASE("a lookup during an upload does not wait for its end", "[req:1.20]") {
  Fixture fixture;
  const Object* const object = fixture.make(7);
  std::future<const Object*> looked_up;
  bool in_time = false;
  fixture.backend->during_upload = [&] {
    looked_up = std::async(std::launch::async, [&] { return fixture.copy(object); });
    in_time = looked_up.wait_for(std::chrono::seconds(2)) == std::future_status::ready;
  };
  REQUIRE(fixture.pool->flush().ok());
  CHECK(in_time);
  CHECK(looked_up.get() != nullptr);
}

TEST_CASE("uploads are batched, but not what lies far apart or in different chunks", "[req:1.20]") {
  Fixture fixture(16);  // 1024 objects of 48 bytes a chunk
  std::vector<Object*> objects;
  for (std::uint64_t i = 0; i < 2048; ++i) objects.push_back(fixture.make(i));
  CHECK(fixture.backend->objects == 2048);
  int copies = 0;
  const auto flush_after_writes_to = [&](std::initializer_list<std::size_t> written) {
    const std::uint64_t one = 1;
    for (const std::size_t i : written) {
      REQUIRE(fixture.pool->write(objects[i], 0, std::as_bytes(std::span(&one, 1))).ok());
    }
    REQUIRE(fixture.pool->flush().ok());
    return fixture.backend->copies - std::exchange(copies, fixture.backend->copies);
  };
  CHECK(flush_after_writes_to({}) == 2);
  CHECK(flush_after_writes_to({}) == 0);
  CHECK(flush_after_writes_to({3, 4, 200}) == 1);
  CHECK(flush_after_writes_to({0, 900, 1023, 1024}) == 3);
  for (std::uint64_t i = 0; i < 2048; ++i) REQUIRE(objects[i]->values[1] == i + 1);
  CHECK(objects[200]->values[0] == 1);
}

TEST_CASE("a handle is recognised as stale long after its end", "[req:1.38]") {
  Fixture fixture;
  Object* stale = fixture.make(1);
  REQUIRE(fixture.pool->free(stale).ok());
  CHECK(fixture.copy(stale) == nullptr);
  CHECK(fixture.pool->free(stale).error().code() == ErrorCode::invalid_argument);
  CHECK_FALSE(fixture.pool->write(stale, 0, {}).ok());
  for (std::size_t i = 0; i < ShadowPool::kQuarantine; ++i) {
    Object* other = fixture.make(2);
    REQUIRE(other != stale);
    REQUIRE(fixture.pool->free(other).ok());
    REQUIRE(fixture.copy(stale) == nullptr);
  }
  CHECK(fixture.make(3) == stale);  // objects are reused in the order of their release
  Object on_stack{};
  CHECK(fixture.pool->find(&on_stack) == nullptr);
  CHECK(fixture.pool->find(nullptr) == nullptr);
  CHECK(fixture.pool->find(reinterpret_cast<std::byte*>(stale) + 1) == nullptr);
  CHECK_FALSE(fixture.pool->free(&on_stack).ok());
}

TEST_CASE("a freed object becomes zeros, a new one starts with zeros behind its contents",
          "[req:1.20]") {
  Fixture fixture;
  Object* object = fixture.make(5);
  REQUIRE(fixture.pool->flush().ok());
  REQUIRE(fixture.pool->free(object).ok());
  REQUIRE(fixture.pool->flush().ok());
  for (const std::uint64_t value : object->values) CHECK(value == 0);
  for (std::size_t i = 0; i < ShadowPool::kQuarantine; ++i) {
    REQUIRE(fixture.pool->free(fixture.make(2)).ok());
  }
  const std::uint64_t first = 77;
  Result<void*> again = fixture.pool->allocate(std::as_bytes(std::span(&first, 1)));
  REQUIRE(again.ok());
  CHECK(*again == object);
  REQUIRE(fixture.pool->flush().ok());
  CHECK(object->values[0] == 77);
  CHECK(object->values[1] == 0);
}

TEST_CASE("writes and contents past the object are refused", "[req:1.38]") {
  Fixture fixture;
  Object* object = fixture.make(1);
  const std::array<std::byte, sizeof(Object) + 1> long_bytes{};
  CHECK_FALSE(fixture.pool->allocate(long_bytes).ok());
  CHECK_FALSE(fixture.pool->write(object, 0, long_bytes).ok());
  CHECK_FALSE(fixture.pool->write(object, sizeof(Object), std::span(long_bytes).first(1)).ok());
  CHECK_FALSE(fixture.pool->write(object, SIZE_MAX, std::span(long_bytes).first(1)).ok());
  CHECK(fixture.pool->write(object, sizeof(Object) - 1, std::span(long_bytes).first(1)).ok());
}

TEST_CASE("an object whose upload failed goes up with the next flush; a full device is an error",
          "[req:1.41]") {
  Fixture fixture;
  Object* object = fixture.make(1);
  fixture.backend->fail = true;
  CHECK_FALSE(fixture.pool->flush().ok());
  CHECK(object->values[1] == kNothingYet);
  for (std::size_t i = 1; i < fixture.backend->objects; ++i) fixture.make(2);
  CHECK_FALSE(fixture.pool->allocate({}).ok());
  fixture.backend->fail = false;
  REQUIRE(fixture.pool->flush().ok());
  CHECK(object->values[1] == 2);
  CHECK(fixture.pool->allocate({}).ok());
}

TEST_CASE("an object of a host pool is its own copy, so a write is visible without a flush",
          "[req:1.20]") {
  const Shadows<Object> first(host_pool(sizeof(Object), alignof(Object)));
  Shadows<Object> second(host_pool(sizeof(Object), alignof(Object)));
  Result<Object*> object = second.allocate(object_of(3));
  REQUIRE(object.ok());
  CHECK((*object)->values[2] == 5);
  CHECK(first.find(*object) == *object);
  REQUIRE(second.write(*object, object_of(4)).ok());
  CHECK((*object)->values[2] == 6);
  CHECK(second.flush().ok());
  CHECK(second.free(*object).ok());
  CHECK(first.find(*object) == nullptr);
  CHECK(host_pool(sizeof(Object) + 8, 8) != host_pool(sizeof(Object), alignof(Object)));
}

TEST_CASE("10,000 random steps keep every object right and the pool small", "[req:1.21]") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  Fixture fixture;
  std::map<Object*, std::uint64_t> live;
  for (int step = 0; step < 10000; ++step) {
    const auto pick = [&] {
      auto at = live.begin();
      std::advance(at, random() % live.size());
      return at;
    };
    const unsigned what = random() % 8;
    if (what < 3 && live.size() < 100) {
      const std::uint64_t value = random();
      REQUIRE(live.emplace(fixture.make(value), value).second);
    } else if (what < 5 && !live.empty()) {
      const auto at = pick();
      REQUIRE(fixture.pool->free(at->first).ok());
      live.erase(at);
    } else if (what < 7 && !live.empty()) {
      const auto at = pick();
      at->second = random();
      const Object value = object_of(at->second);
      REQUIRE(fixture.pool->write(at->first, 0, std::as_bytes(std::span(&value, 1))).ok());
    } else {
      REQUIRE(fixture.pool->flush().ok());
      for (const auto& [object, value] : live) REQUIRE(object->values[4] == value);
    }
  }
  CHECK(fixture.backend->objects <= 100 + ShadowPool::kQuarantine + 4 * 64);
}

TEST_CASE("threads that allocate, flush and free in one pool each get their own objects",
          "[req:1.10]") {
  Fixture fixture;
  std::vector<std::thread> threads;
  std::vector<int> failures(4, 0);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 500; ++i) {
        const Object initial = object_of(t * 1000 + i);
        const Result<void*> made = fixture.pool->allocate(std::as_bytes(std::span(&initial, 1)));
        if (!made.ok() || !fixture.pool->flush().ok() ||
            static_cast<const Object*>(*made)->values[0] != t * 1000 + i ||
            !fixture.pool->free(*made).ok()) {
          ++failures[t];
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failures == std::vector<int>(4, 0));
  CHECK(fixture.backend->objects <= 4 + ShadowPool::kQuarantine + 4 * 64);
}

}  // namespace
}  // namespace oriel::shadow
