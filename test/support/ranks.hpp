// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nccl.h"

#include "boot/session/forked_ranks.hpp"
#include "support/sanitized.hpp"

/// Ranks of the C interface for tests. The same body runs as forked processes, as threads of one
/// process, or as several communicators of one thread in groups.
namespace oriel::test {

/// Selects how ranks are run. In every launch mode the ranks live in forked children of the
/// test. So a rank that hangs can be killed, and no state is left in the test's own process.
enum class LaunchMode { processes, threads, group };
inline constexpr LaunchMode kAllLaunchModes[] = {LaunchMode::threads, LaunchMode::group,
                                                 LaunchMode::processes};
/// Leaves out LaunchMode::processes under the thread sanitizer, which cannot see memory accesses
/// across processes.
inline constexpr std::span kLaunchModes(kAllLaunchModes, kThreadSanitized ? 2 : 3);
const char* name_of(LaunchMode launch_mode);

using Variables = std::vector<std::pair<std::string, std::string>>;

/// Sets environment variables until destroyed, and makes Oriel reread this process's settings. An
/// empty value unsets a variable.
class Environment {
 public:
  explicit Environment(const Variables& variables);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  Variables before_;
};

/// Memory shared by all ranks: their meeting points, and words for the body's own use.
struct SharedState {
  static constexpr std::size_t kIds = 64;
  static constexpr std::size_t kWords = 65536;
  std::atomic<std::uint32_t> ids_made;
  std::atomic<std::uint32_t> ids_failed;
  ncclUniqueId ids[kIds];  // ring: ranks are never more than a barrier apart
  std::atomic<std::uint32_t> arrived;
  std::atomic<std::uint64_t> words[kWords];
};

/// Ranks of one process or thread of a test: one rank, or all of them. Failures are
/// exceptions.
class TestRanks {
 public:
  TestRanks(SharedState& shared, std::vector<int> ranks, int size, int processes)
      : shared_(shared), ranks_(std::move(ranks)), size_(size), processes_(processes) {}

  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return size_; }
  int first() const { return ranks_.front(); }
  std::atomic<std::uint64_t>& word(std::size_t index) { return shared_.words[index]; }

  /// Returns the unique id of the next communicator, made by the process of rank 0.
  ncclUniqueId next_id();
  /// Waits until every process or thread of the test has entered this barrier.
  void barrier();
  /// Waits until word(index) is at least `value`.
  void await(std::size_t index, std::uint64_t value = 1);

  /// Calls call(i, ranks()[i]) for each of these ranks, in a group if there are several. Returns
  /// the first error, else the result of ncclGroupEnd().
  ncclResult_t together(const std::function<ncclResult_t(std::size_t i, int rank)>& call);

  /// Creates a communicator over all ranks. Returns a handle for each of these ranks.
  std::vector<ncclComm_t> init(ncclConfig_t* config = nullptr);
  void destroy(std::vector<ncclComm_t>& comms);
  /// Registers buffers[i] for each of these ranks, all in one group if there are several ranks.
  std::vector<ncclWindow_t> register_windows(const std::vector<ncclComm_t>& comms,
                                             const std::vector<void*>& buffers, std::size_t bytes);

 private:
  SharedState& shared_;
  std::vector<int> ranks_;
  int size_;
  int processes_;
  std::uint32_t ids_taken_ = 0;
  std::uint32_t barriers_ = 0;
};

using Body = std::function<void(TestRanks&)>;

/// Runs ranks in child processes. The destructor kills the children that are left.
class RankFixture {
 public:
  RankFixture(LaunchMode launch_mode, int size, const Body& body);
  ~RankFixture();
  RankFixture(const RankFixture&) = delete;
  RankFixture& operator=(const RankFixture&) = delete;

  SharedState& shared() { return *shared_; }
  void kill(int rank, int signal) {
    children_->kill(rank, signal);
  }  ///< LaunchMode::processes only
  pid_t pid(int rank) const { return children_->pid(rank); }
  /// Waits until words[index] is at least `value`. Returns false after `timeout`.
  bool wait_for_word(std::size_t index, std::uint64_t value, std::chrono::milliseconds timeout);
  /// Returns "ok" or an error text for each child process: one per rank in LaunchMode::processes,
  /// else one in all.
  std::vector<std::string> collect(std::chrono::milliseconds timeout);

 private:
  SharedState* shared_;
  std::unique_ptr<ForkedRanks> children_;
};

/// Runs `body` to its end. Returns the texts of RankFixture::collect().
std::vector<std::string> run_ranks(LaunchMode launch_mode, int size, const Body& body,
                                   std::chrono::milliseconds timeout = std::chrono::seconds(60));

/// CHECKs that every text is "ok".
void check_all_ok(const std::vector<std::string>& results);

/// Runs `body` in every launch mode, and CHECKs that each child ended with "ok".
void run_in_all_modes(int size, const Body& body,
                      std::chrono::milliseconds timeout = std::chrono::seconds(60));

/// Throws with the call's error text unless it returned ncclSuccess.
void require(ncclResult_t result, const char* what);
/// Throws unless the call returned `expected` and its error text contains each of `words`.
void expect_error(ncclResult_t result, ncclResult_t expected, const char* what,
                  const std::vector<std::string>& words = {});
/// Throws unless `condition`.
void require(bool condition, const std::string& what);
/// Throws unless `text` contains each of `words`.
void require_words(const std::string& text, const std::vector<std::string>& words);

ncclUniqueId new_id();
/// Returns a configuration for nonblocking calls.
ncclConfig_t non_blocking();
/// Returns the state that ncclCommGetAsyncError() reports.
ncclResult_t state_of(ncclComm_t comm);
/// Waits until the state is not ncclSuccess, and returns the state. Returns ncclSuccess after 20 s.
ncclResult_t await_failure(ncclComm_t comm);

/// Memory of ncclMemAlloc.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept : base_(std::exchange(other.base_, nullptr)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* at(std::size_t offset = 0) const { return static_cast<std::byte*>(base_) + offset; }

 private:
  void* base_ = nullptr;
};

}  // namespace oriel::test
