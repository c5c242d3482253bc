// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/event_loop.hpp"
#include "boot/session/session.hpp"
#include "window/mapping/flat_space.hpp"
#include "window/registration/window_manager.hpp"

/// Ranks that register windows over real sessions: as forked processes, as threads, or mixed.
namespace oriel::window {

inline constexpr std::chrono::seconds kPatience{20};

/// Counts the objects that handles point to.
class CountingSink final : public WindowSink {
 public:
  Result<void*> create(const WindowFacts& facts) override;
  void destroy(void* handle) noexcept override;
  int alive() const { return alive_; }

 private:
  std::atomic<int> alive_{0};
};

struct RankOptions {
  /// Slots of each LSA team as world ranks; empty: one team of all.
  std::vector<std::vector<int>> teams;
  std::size_t slot_bytes = kSlotUnitBytes;
  std::chrono::milliseconds timeout = kPatience;
  std::vector<Participant*> participants;
  /// See WindowManagerOptions; by world rank, for one team of all.
  std::vector<int> descriptor_domains;
  /// The memory of each world rank; called in the rank's process. Null: the host's.
  std::function<Result<Memory*>(int rank)> memory;
  bool always_fork = false;  ///< also where one process has all ranks
};

/// One rank with its session, groups and manager.
class WindowRank {
 public:
  static Result<std::unique_ptr<WindowRank>> join(const boot::UniqueId& id, int rank, int size,
                                                  const RankOptions& options);

  int rank() const { return session_->rank(); }
  int size() const { return session_->size(); }
  boot::Group& team() { return *team_; }
  WindowManager& manager() { return *manager_; }
  CountingSink& sink() { return sink_; }
  boot::Session& session() { return *session_; }
  Memory& memory() { return *memory_; }
  /// The flat space of the team, which this holds: what a registration leaves in it stays there.
  FlatSpace& space() { return *space_; }
  /// That this rank holds nothing of any window.
  Status check_nothing_held();

  Result<std::vector<RegisteredWindow>> register_batch(std::vector<WindowRequest> requests);
  Result<RegisteredWindow> register_one(void* pointer, std::size_t bytes);
  Status deregister(const std::vector<RegisteredWindow>& windows);
  /// Registers a window and deregisters it.
  Status cycle(void* pointer, std::size_t bytes);
  Status barrier();
  /// The world's outcome of each rank's own.
  Status agree(Status mine);
  /// That the world's ranks all have this text.
  Status same_everywhere(const std::string& text);
  /// The window of the team's rank `index` as this rank has it mapped.
  std::byte* peer(const RegisteredWindow& window, int index) const {
    return window.flat_base + static_cast<std::size_t>(index) * slot_bytes_;
  }
  /// The manager goes, as when a communicator is destroyed.
  void drop_manager() { manager_.reset(); }

 private:
  explicit WindowRank(EventLoop loop) : loop_(std::move(loop)) {}
  Task<Status> set_up(boot::UniqueId id, int rank, int size, RankOptions options);

  EventLoop loop_;
  std::unique_ptr<boot::Session> session_;
  std::unique_ptr<boot::Group> team_;
  CountingSink sink_;
  std::shared_ptr<FlatSpace> space_;
  std::unique_ptr<WindowManager> manager_;
  Memory* memory_ = nullptr;
  std::size_t slot_bytes_ = 0;
  Duration timeout_{};
};

using RankBody = std::function<Status(WindowRank&)>;

/// Runs `body` on every rank; layout[p] ranks live as threads of process p. One process: threads of
/// this one, unless options say otherwise; several: all are forked. "ok" or the error of each rank.
std::vector<std::string> run_ranks(const std::vector<int>& layout, const RankOptions& options,
                                   const RankBody& body);

/// Checks that every rank says "ok", once for each of these layouts.
void check_ranks(const std::vector<std::vector<int>>& layouts, const RankOptions& options,
                 const RankBody& body);

/// Checks that every rank said "ok".
void check_all_ok(const std::vector<std::string>& verdicts);

/// Memory of host_memory(), freed when destroyed.
class HostBuffer {
 public:
  explicit HostBuffer(std::size_t bytes);
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  std::byte* at(std::size_t offset = 0) const { return base_ + offset; }

 private:
  std::byte* base_ = nullptr;
};

/// An error that says what a test body saw.
#define ORIEL_EXPECT(condition)                                                           \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      return ::oriel::Error(                                                              \
          ::oriel::ErrorCode::internal,                                                   \
          std::string("not so: " #condition " (line ") + std::to_string(__LINE__) + ")"); \
    }                                                                                     \
  } while (false)

}  // namespace oriel::window
