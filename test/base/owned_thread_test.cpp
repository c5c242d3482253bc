// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/owned_thread.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <catch2/catch.hpp>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#if ORIEL_HAVE_CUDA
#include "base/cuda_table.hpp"
#endif
#include "support/fault.hpp"
#include "support/in_child.hpp"

namespace oriel {
namespace {

using namespace std::chrono_literals;

/// Starts a thread that runs until it is stopped.
OwnedThread start_waiting(std::atomic<bool>& stop, std::atomic<bool>& ended) {
  OwnedThread::Options options;
  options.name = "oriel-test";
  options.body = [&stop, &ended] {
    while (!stop) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(20ms);
    ended = true;
  };
  options.stop = [&stop] { stop = true; };
  return std::move(OwnedThread::start(std::move(options))).value();
}

}  // namespace

TEST_CASE("an owned thread runs with its name and without signals", "[req:1.12]") {
  std::string name;
  int unblocked = 0;
  OwnedThread::Options options;
  options.name = "oriel-named";
  OwnedThread thread;
  options.body = [&] {
    std::array<char, 16> text{};
    ::pthread_getname_np(::pthread_self(), text.data(), text.size());
    name = text.data();
    sigset_t blocked;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGPROF}) {
      unblocked += ::sigismember(&blocked, signal) == 1 ? 0 : 1;
    }
  };
  thread = std::move(OwnedThread::start(std::move(options))).value();
  CHECK_FALSE(thread.is_current());
  REQUIRE(thread.join().ok());
  CHECK(name == "oriel-named");
  CHECK(unblocked == 0);
  sigset_t own;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &own);
  CHECK(::sigismember(&own, SIGINT) == 0);
}

TEST_CASE("an owned thread's destructor stops and joins it", "[req:1.12]") {
  std::atomic<bool> stop{false}, ended{false};
  {
    OwnedThread thread = start_waiting(stop, ended);
    const Status status = thread.join(Deadline::after(5ms));
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code() == ErrorCode::timeout);
    const OwnedThread moved = std::move(thread);
  }
  CHECK(ended);
}

TEST_CASE("an exception that leaves an owned thread's body becomes an error") {
  const bool short_of_memory = GENERATE(true, false);
  std::string message;
  OwnedThread::Options options;
  options.name = "oriel-throws";
  options.body = [short_of_memory] {
    if (short_of_memory) throw std::bad_alloc();
    throw std::runtime_error("no such thing");
  };
  options.failed = [&message](const Error& error) { message = error.message(); };
  auto thread = std::move(OwnedThread::start(std::move(options))).value();
  const Status status = thread.join();
  REQUIRE_FALSE(status.ok());
  CHECK(message == status.error().message());
  CHECK(message.find(short_of_memory ? "out of memory" : "no such thing") != std::string::npos);
  CHECK(status.error().code() == (short_of_memory ? ErrorCode::system : ErrorCode::internal));
}

TEST_CASE("a thread that cannot be started is an error, its functions are freed") {
  test::FaultPlan plan;
  plan.status = EAGAIN;
  plan.fail_at = 1;
  const auto held = std::make_shared<int>(0);
  {
    const test::ScopedSystemFaults faults(plan);
    OwnedThread::Options options;
    options.body = [held] {};
    const auto thread = OwnedThread::start(std::move(options));
    REQUIRE_FALSE(thread.ok());
    CHECK(thread.error().native().value == EAGAIN);
  }
  CHECK(held.use_count() == 1);
}

TEST_CASE("a thread that is left to the library frees what its functions hold when it ends") {
  const auto held = std::make_shared<int>(0);
  std::atomic<bool> stop{false};
  OwnedThread::Options options;
  options.body = [held, &stop] {
    while (!stop) std::this_thread::sleep_for(1ms);
  };
  options.stop = [held, &stop] { stop = true; };
  auto thread = std::move(OwnedThread::start(std::move(options))).value();
  thread.leave_to_library();
  CHECK(held.use_count() > 1);
  stop = true;
  for (int i = 0; i < 5'000 && held.use_count() > 1; ++i) std::this_thread::sleep_for(1ms);
  CHECK(held.use_count() == 1);
}

// ThreadSanitizer does not support threads in a child whose parent had threads.
#if !defined(__SANITIZE_THREAD__)

TEST_CASE("exit() stops and joins the threads that still run", "[req:1.12]") {
  const bool left = GENERATE(true, false);
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  CHECK(test::status_of_child([&]() -> int {
          static constinit std::atomic<bool> stop{false};
          static OwnedThread* thread = nullptr;  // never destroyed
          OwnedThread::Options options;
          options.body = [writer = ends[1]] {
            while (!stop) std::this_thread::sleep_for(1ms);
            std::this_thread::sleep_for(50ms);
            static_cast<void>(!::write(writer, "x", 1));
          };
          options.stop = [] { stop = true; };
          thread = new OwnedThread(std::move(OwnedThread::start(std::move(options))).value());
          if (left) thread->leave_to_library();
          std::exit(0);
        }) == 0);
  ::close(ends[1]);
  char letter = 0;
  CHECK(::read(ends[0], &letter, 1) == 1);
  ::close(ends[0]);
}

TEST_CASE("exit() in an owned thread does not wait for that thread") {
  CHECK(test::status_of_child([] {
          OwnedThread::Options options;
          options.body = [] { std::exit(7); };
          const auto thread = OwnedThread::start(std::move(options));
          std::this_thread::sleep_for(15s);
          return 0;
        }) == 7);
}

TEST_CASE("a forked child does not wait for its parent's threads", "[req:1.40]") {
  std::atomic<bool> stop{false}, ended{false};
  OwnedThread thread = start_waiting(stop, ended);
  CHECK(test::status_of_child([&] {
          thread.stop();
          if (stop || !thread.join().ok()) return 1;
          const OwnedThread own = start_waiting(stop, ended);
          return 0;
        }) == 0);
}

#endif

#if ORIEL_HAVE_CUDA

namespace {

std::atomic<int> relaxed_now{0};
thread_local CUstreamCaptureMode mode_of_thread = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult exchange_mode(CUstreamCaptureMode* mode) {
  std::swap(*mode, mode_of_thread);
  relaxed_now += mode_of_thread == CU_STREAM_CAPTURE_MODE_RELAXED ? 1 : -1;
  return CUDA_SUCCESS;
}

}  // namespace

TEST_CASE("an owned thread does not disturb stream captures") {
  CudaTable table = cuda();
  table.thread_exchange_stream_capture_mode = exchange_mode;
  const ScopedCudaTable scoped(table);
  int during = 0;
  OwnedThread::Options options;
  options.body = [&during] { during = relaxed_now; };
  auto thread = std::move(OwnedThread::start(std::move(options))).value();
  REQUIRE(thread.join().ok());
  CHECK(during == 1);
  CHECK(relaxed_now == 0);
}

#endif

}  // namespace oriel
