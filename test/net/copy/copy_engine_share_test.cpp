// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/copy/copy_engine_share.hpp"

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include <catch2/catch.hpp>

#include "net/copy/idle_engine.hpp"

// NICs of a rank that share the engine of its GPU (3.14).
using namespace oriel;
using namespace oriel::net;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

/// Engine that has failed while its earlier work is still moving.
class FailedEngine final : public net::test::IdleEngine {
 public:
  bool flush() override { return false; }
  Status drain() override {
    while (!settle()) std::this_thread::yield();
    return {};
  }
  bool has_failed() const override { return true; }
  bool settle() noexcept override {
    ++polls;
    return has_settled;
  }
  std::atomic<int> polls = 0;
  std::atomic<bool> has_settled = false;
};

}  // namespace

TEST_CASE("a GPU whose copies have failed and go on holds up none of a rank's other NICs",
          "[req:3.14]") {
  FailedEngine engine;
  std::mutex mutex;
  CopyEngineShare waits(engine, mutex), other(engine, mutex);
  auto drained = std::async(std::launch::async, [&] { return waits.drain().ok(); });
  while (engine.polls == 0) std::this_thread::yield();
  auto polled = std::async(std::launch::async, [&] { return other.has_failed(); });
  const bool was_free = polled.wait_for(seconds(10)) == std::future_status::ready;
  const bool was_waiting = drained.wait_for(milliseconds(0)) != std::future_status::ready;
  engine.has_settled = true;
  CHECK(was_free);
  CHECK(was_waiting);
  CHECK(drained.get());
}

TEST_CASE("a GPU whose copies do not end is waited for once", "[req:3.14]") {
  FailedEngine engine;
  std::mutex mutex;
  CopyEngineShare share(engine, mutex, milliseconds(50));
  const auto begin = std::chrono::steady_clock::now();
  CHECK_FALSE(share.drain().ok());
  CHECK(std::chrono::steady_clock::now() - begin >= milliseconds(50));
  const int polls = engine.polls;
  CHECK_FALSE(share.drain().ok());
  CHECK(engine.polls == polls + 1);
  engine.has_settled = true;
  CHECK(share.drain().ok());
}
