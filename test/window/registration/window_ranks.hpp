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

inline constexpr std::chrono::seconds kTimeout{20};

/// Counts the live objects behind window handles.
class CountingSink final : public WindowSink {
 public:
  Result<void*> create(const WindowFacts& facts) override;
  void destroy(void* handle) noexcept override;
  int alive() const { return alive_; }

 private:
  std::atomic<int> alive_{0};
};

struct RankOptions {
  /// Members of each LSA team as world ranks, by slot; empty: one team of all ranks.
  std::vector<std::vector<int>> teams;
  std::size_t slot_bytes = kSlotUnitBytes;
  std::chrono::milliseconds timeout = kTimeout;
  std::vector<Participant*> participants;
  /// Descriptor domain of each world rank, for one team of all; see WindowManagerOptions.
  std::vector<int> descriptor_domains;
  /// Returns the memory of each world rank; called in the rank's process. Null: host memory.
  std::function<Result<Memory*>(int rank)> memory;
  bool always_fork = false;  ///< also forks if one process has all ranks
};

/// One rank with its session, groups and window manager.
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
  /// Returns the team's flat space. This object keeps it alive, so that leftovers of a registration
  /// stay visible.
  FlatSpace& space() { return *space_; }
  /// Returns an error if this rank holds anything of any window.
  Status check_nothing_held();

  Result<std::vector<RegisteredWindow>> register_batch(std::vector<WindowRequest> requests);
  Result<RegisteredWindow> register_one(void* pointer, std::size_t bytes);
  Status deregister(const std::vector<RegisteredWindow>& windows);
  /// Registers and deregisters a window.
  Status cycle(void* pointer, std::size_t bytes);
  Status barrier();
  /// Combines each rank's outcome into the world's outcome.
  Status agree(Status mine);
  /// Returns an error unless all ranks of the world have this text.
  Status same_everywhere(const std::string& text);
  /// Returns this rank's mapping of the window of team rank `index`.
  std::byte* peer(const RegisteredWindow& window, int index) const {
    return window.flat_base + static_cast<std::size_t>(index) * slot_bytes_;
  }
  /// Destroys the manager, as the destruction of a communicator does.
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

/// Runs `body` on every rank; layout[p] ranks live as threads of process p. With one process, ranks
/// are threads of this process unless `always_fork` is set; with several, all are forked. Returns
/// "ok" or the error of each rank.
std::vector<std::string> run_ranks(const std::vector<int>& layout, const RankOptions& options,
                                   const RankBody& body);

/// Checks that every rank returns "ok", once for each of these layouts.
void check_ranks(const std::vector<std::vector<int>>& layouts, const RankOptions& options,
                 const RankBody& body);

/// Checks that every rank returned "ok".
void check_all_ok(const std::vector<std::string>& results);

/// Memory of host_memory(), freed by the destructor.
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

/// Returns an error with the condition's text if the condition is false.
#define ORIEL_EXPECT(condition)                                                           \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      return ::oriel::Error(                                                              \
          ::oriel::ErrorCode::internal,                                                   \
          std::string("not so: " #condition " (line ") + std::to_string(__LINE__) + ")"); \
    }                                                                                     \
  } while (false)

}  // namespace oriel::window
