// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "support/ranks.hpp"

#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <numeric>
#include <stdexcept>
#include <thread>

#include <catch2/catch.hpp>
#include <sys/mman.h>

#include "oriel/device/memory.hpp"

#include "base/settings.hpp"

namespace oriel::test {
namespace {

constexpr auto kMeetingTimeout = std::chrono::seconds(50);

template <typename Predicate>
bool poll_until(std::chrono::milliseconds timeout, const Predicate& predicate) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (int round = 0; !predicate(); ++round) {
    if (std::chrono::steady_clock::now() > end) return false;
    if (round > 100) std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (round <= 100) std::this_thread::yield();
  }
  return true;
}

std::string value_of(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value != nullptr ? value : "";
}

void set_variable(const std::string& name, const std::string& value) {
  if (value.empty()) {
    ::unsetenv(name.c_str());
  } else {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
}

// Runs every rank as a thread. Returns an error with the failures of all ranks.
Status run_threads(SharedState& shared, int size, const Body& body) {
  std::mutex mutex;
  std::string failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        TestRanks test_ranks(shared, {rank}, size, size);
        body(test_ranks);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        failure += "rank " + std::to_string(rank) + ": " + error.what() + "; ";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure.empty()) return {};
  return Error(ErrorCode::internal, failure);
}

}  // namespace

const char* name_of(LaunchMode launch_mode) {
  switch (launch_mode) {
    case LaunchMode::processes:
      return "processes";
    case LaunchMode::threads:
      return "threads";
    case LaunchMode::group:
      break;
  }
  return "communicators of one thread";
}

Environment::Environment(const Variables& variables) {
  for (const auto& [name, value] : variables) {
    before_.emplace_back(name, value_of(name));
    set_variable(name, value);
  }
  reread_process_settings();
}

Environment::~Environment() {
  for (auto it = before_.rbegin(); it != before_.rend(); ++it) set_variable(it->first, it->second);
  reread_process_settings();
}

ncclUniqueId TestRanks::next_id() {
  const std::uint32_t index = ids_taken_++;
  ncclUniqueId& place = shared_.ids[index % SharedState::kIds];
  if (first() == 0) {
    const ncclResult_t result = ncclGetUniqueId(&place);
    if (result != ncclSuccess) shared_.ids_failed = 1;
    require(result, "ncclGetUniqueId");
    shared_.ids_made = index + 1;
  } else {
    const bool made = poll_until(
        kMeetingTimeout, [&] { return shared_.ids_made > index || shared_.ids_failed != 0; });
    require(made && shared_.ids_failed == 0, "rank 0 has made no unique id");
  }
  return place;
}

void TestRanks::barrier() {
  const std::uint32_t goal = ++barriers_ * static_cast<std::uint32_t>(processes_);
  device::arch::annotate_happens_before();
  shared_.arrived.fetch_add(1);
  require(poll_until(kMeetingTimeout, [&] { return shared_.arrived >= goal; }),
          "the others have not come to the test's barrier");
  device::arch::annotate_happens_after();
}

void TestRanks::await(std::size_t index, std::uint64_t value) {
  require(poll_until(kMeetingTimeout, [&] { return word(index) >= value; }),
          "another rank has not come as far as awaited");
  device::arch::annotate_happens_after();
}

ncclResult_t TestRanks::together(const std::function<ncclResult_t(std::size_t i, int rank)>& call) {
  if (ranks_.size() == 1) return call(0, ranks_.front());
  ncclResult_t result = ncclGroupStart();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const ncclResult_t noted = call(i, ranks_[i]);
    if (result == ncclSuccess) result = noted;
  }
  const ncclResult_t ended = ncclGroupEnd();
  return result == ncclSuccess ? ended : result;
}

std::vector<ncclComm_t> TestRanks::init(ncclConfig_t* config) {
  const ncclUniqueId id = next_id();
  std::vector<ncclComm_t> comms(ranks_.size(), nullptr);
  require(together([&](std::size_t i, int rank) {
            return ncclCommInitRankConfig(&comms[i], size_, id, rank, config);
          }),
          "ncclCommInitRankConfig");
  return comms;
}

void TestRanks::destroy(std::vector<ncclComm_t>& comms) {
  for (ncclComm_t comm : comms) require(ncclCommDestroy(comm), "ncclCommDestroy");
  comms.clear();
}

std::vector<ncclWindow_t> TestRanks::register_windows(const std::vector<ncclComm_t>& comms,
                                                      const std::vector<void*>& buffers,
                                                      std::size_t bytes) {
  std::vector<ncclWindow_t> windows(comms.size(), nullptr);
  require(together([&](std::size_t i, int) {
            return ncclCommWindowRegister(comms[i], buffers[i], bytes, &windows[i],
                                          NCCL_WIN_COLL_SYMMETRIC);
          }),
          "ncclCommWindowRegister");
  return windows;
}

RankFixture::RankFixture(LaunchMode launch_mode, int size, const Body& body) {
  // Relies on mmap's zero pages as the initial state of the memory.
  void* memory = ::mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for the shared");
  shared_ = static_cast<SharedState*>(memory);
  SharedState& shared = *shared_;
  const int children = launch_mode == LaunchMode::processes ? size : 1;
  children_ = std::make_unique<ForkedRanks>(children, [&, launch_mode, size](int child) -> Status {
    if (launch_mode == LaunchMode::threads) return run_threads(shared, size, body);
    std::vector<int> ranks = {child};
    if (launch_mode == LaunchMode::group) {
      ranks.resize(static_cast<std::size_t>(size));
      std::iota(ranks.begin(), ranks.end(), 0);
    }
    TestRanks test_ranks(shared, std::move(ranks), size, children);
    body(test_ranks);
    return {};
  });
}

RankFixture::~RankFixture() {
  children_.reset();
  ::munmap(shared_, sizeof(SharedState));
}

bool RankFixture::wait_for_word(std::size_t index, std::uint64_t value,
                                std::chrono::milliseconds timeout) {
  return poll_until(timeout, [&] { return shared_->words[index] >= value; });
}

std::vector<std::string> RankFixture::collect(std::chrono::milliseconds timeout) {
  return children_->collect(timeout);
}

std::vector<std::string> run_ranks(LaunchMode launch_mode, int size, const Body& body,
                                   std::chrono::milliseconds timeout) {
  return RankFixture(launch_mode, size, body).collect(timeout);
}

void check_all_ok(const std::vector<std::string>& results) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    INFO("child " << i);
    CHECK(results[i] == "ok");
  }
}

void run_in_all_modes(int size, const Body& body, std::chrono::milliseconds timeout) {
  for (const LaunchMode launch_mode : kLaunchModes) {
    INFO(name_of(launch_mode));
    check_all_ok(run_ranks(launch_mode, size, body, timeout));
  }
}

void require(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  throw std::runtime_error(std::string(what) + " returned " + std::to_string(result) + ": " +
                           ncclGetLastError(nullptr));
}

void expect_error(ncclResult_t result, ncclResult_t expected, const char* what,
                  const std::vector<std::string>& words) {
  const std::string text = ncclGetLastError(nullptr);
  if (result != expected) {
    throw std::runtime_error(std::string(what) + " returned " + std::to_string(result) +
                             " instead of " + std::to_string(expected) + ": " + text);
  }
  require_words(text, words);
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

void require_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    require(text.find(word) != std::string::npos, "no \"" + word + "\" in \"" + text + "\"");
  }
}

ncclUniqueId new_id() {
  ncclUniqueId id;
  require(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return id;
}

ncclConfig_t non_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclInternalError;
  require(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
  return state;
}

ncclResult_t await_failure(ncclComm_t comm) {
  static_cast<void>(
      poll_until(std::chrono::seconds(20), [&] { return state_of(comm) != ncclSuccess; }));
  return state_of(comm);
}

Buffer::Buffer(std::size_t bytes) {
  require(ncclMemAlloc(&base_, bytes), "ncclMemAlloc");
}

Buffer::~Buffer() {
  if (base_ != nullptr) static_cast<void>(ncclMemFree(base_));
}

}  // namespace oriel::test
