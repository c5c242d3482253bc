// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/registration/window_ranks.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <thread>

#include <catch2/catch.hpp>

#include "base/process_number.hpp"
#include "base/try.hpp"
#include "boot/session/forked_ranks.hpp"
#include "boot/session/served_id.hpp"
#include "window/mapping/space_state.hpp"
#include "window/memory/memory_host.hpp"

namespace oriel::window {
namespace {

const boot::SocketOptions kLoopback = {.ifname = "lo"};

std::string join_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string live(const boot::UniqueId& id, int rank, int size, const RankOptions& options,
                 const RankBody& body) {
  auto joined = WindowRank::join(id, rank, size, options);
  if (!joined.ok()) return joined.error().to_string();
  const Status status = body(*joined.value());
  return status.ok() ? "ok" : status.error().to_string();
}

/// Runs the ranks [first, first + count) as threads of this process.
std::vector<std::string> run_threads(const boot::UniqueId& id, int first, int count, int size,
                                     const RankOptions& options, const RankBody& body) {
  std::vector<std::string> results(static_cast<std::size_t>(count));
  std::vector<std::jthread> threads;
  for (int i = 1; i < count; ++i) {
    threads.emplace_back([&, i] {
      results[static_cast<std::size_t>(i)] = live(id, first + i, size, options, body);
    });
  }
  results[0] = live(id, first, size, options, body);
  threads.clear();
  return results;
}

}  // namespace

Result<void*> CountingSink::create(const WindowFacts& facts) {
  ++alive_;
  return static_cast<void*>(new WindowFacts(facts));
}

void CountingSink::destroy(void* handle) noexcept {
  --alive_;
  delete static_cast<WindowFacts*>(handle);
}

Result<std::unique_ptr<WindowRank>> WindowRank::join(const boot::UniqueId& id, int rank, int size,
                                                     const RankOptions& options) {
  ORIEL_TRY(EventLoop loop, EventLoop::create());
  auto made = std::unique_ptr<WindowRank>(new WindowRank(std::move(loop)));
  ORIEL_CHECK(made->loop_.run(made->set_up(id, rank, size, options)));
  return made;
}

Task<Status> WindowRank::set_up(boot::UniqueId id, int rank, int size, RankOptions options) {
  timeout_ = options.timeout;
  slot_bytes_ = options.slot_bytes;
  const Deadline deadline = Deadline::after(kTimeout);
  boot::SessionOptions session_options{.socket = kLoopback};
  ORIEL_CO_TRY(session_, co_await boot::Session::join(loop_, id, rank, size,
                                                      std::move(session_options), deadline));
  ORIEL_CO_TRY(const auto activity, session_->activate(loop_, deadline));
  memory_ = &host_memory();
  if (options.memory) {
    ORIEL_CO_TRY(memory_, options.memory(rank));
  }
  ByteWriter writer;
  Bytes mine =
      writer.put(process_number()).put(static_cast<std::int32_t>(memory_->device())).take();
  ORIEL_CO_TRY(const auto processes,
               co_await session_->world().all_gather(boot::Operation::topology, std::move(mine)));
  std::vector<int> team(static_cast<std::size_t>(size));
  std::iota(team.begin(), team.end(), 0);
  for (const auto& one : options.teams) {
    if (std::find(one.begin(), one.end(), rank) != one.end()) team = one;
  }
  WindowManagerOptions manager_options;
  for (const int member : team) {
    ByteReader reader(processes[static_cast<std::size_t>(member)]);
    const auto process = reader.get<std::uint64_t>();
    manager_options.members.push_back({process, reader.get<std::int32_t>()});
  }
  ORIEL_CO_TRY(auto group, co_await session_->subgroup(std::move(team)));
  team_ = std::make_unique<boot::Group>(std::move(group));
  ORIEL_CO_TRY(space_, FlatSpace::acquire(*memory_, manager_options.members, slot_bytes_));
  manager_options.world = &session_->world();
  manager_options.team = team_.get();
  manager_options.memory = memory_;
  manager_options.slot_bytes = slot_bytes_;
  manager_options.key = session_->key(boot::KeyPurpose::fd_exchange);
  manager_options.communicator = session_->number();
  manager_options.sink = &sink_;
  manager_options.participants = options.participants;
  manager_options.descriptor_domains = options.descriptor_domains;
  manager_ = std::make_unique<WindowManager>(std::move(manager_options));
  co_return Status();
}

Status WindowRank::check_nothing_held() {
  ORIEL_EXPECT(sink_.alive() == 0);
  ORIEL_EXPECT(all_free(space_->slots()));
  return {};
}

Result<std::vector<RegisteredWindow>> WindowRank::register_batch(
    std::vector<WindowRequest> requests) {
  const Deadline deadline = Deadline::after(timeout_);
  ORIEL_TRY(const auto activity, session_->activate(loop_, deadline));
  return loop_.run(manager_->register_batch(loop_, boot::Operation::window_register,
                                            std::move(requests), deadline));
}

Result<RegisteredWindow> WindowRank::register_one(void* pointer, std::size_t bytes) {
  ORIEL_TRY(const auto windows, register_batch({{pointer, bytes, 0}}));
  return windows.at(0);
}

Status WindowRank::deregister(const std::vector<RegisteredWindow>& windows) {
  for (const auto& window : windows) ORIEL_CHECK(manager_->deregister(window.handle));
  return {};
}

Status WindowRank::cycle(void* pointer, std::size_t bytes) {
  ORIEL_TRY(const auto window, register_one(pointer, bytes));
  return manager_->deregister(window.handle);
}

Status WindowRank::barrier() {
  return agree({});
}

Status WindowRank::agree(Status mine) {
  ORIEL_TRY(const auto activity, session_->activate(loop_, Deadline::after(kTimeout)));
  return loop_.run(session_->world().agree(boot::Operation::test, std::move(mine), {}));
}

Status WindowRank::same_everywhere(const std::string& text) {
  ORIEL_TRY(const auto activity, session_->activate(loop_, Deadline::after(kTimeout)));
  return loop_.run(session_->world().agree(boot::Operation::test, {},
                                           {{"the text", std::hash<std::string>()(text)}}));
}

std::vector<std::string> run_ranks(const std::vector<int>& layout, const RankOptions& options,
                                   const RankBody& body) {
  const ServedId id;
  const int size = std::accumulate(layout.begin(), layout.end(), 0);
  if (layout.size() == 1 && !options.always_fork)
    return run_threads(id.value(), 0, size, size, options, body);
  const auto process = [&](int index) -> Status {
    const int first = std::accumulate(layout.begin(), layout.begin() + index, 0);
    const auto results = run_threads(id.value(), first, layout[static_cast<std::size_t>(index)],
                                     size, options, body);
    return Error(ErrorCode::internal, join_lines(results));
  };
  std::vector<std::string> all;
  for (const auto& report : run_forked(static_cast<int>(layout.size()), process, 2 * kTimeout)) {
    const auto lines = split_lines(report);
    all.insert(all.end(), lines.begin(), lines.end());
  }
  return all;
}

void check_ranks(const std::vector<std::vector<int>>& layouts, const RankOptions& options,
                 const RankBody& body) {
  for (const auto& layout : layouts) {
    CAPTURE(layout);
    check_all_ok(run_ranks(layout, options, body));
  }
}

void check_all_ok(const std::vector<std::string>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    INFO("rank " << rank << ": " << results[rank]);
    CHECK(results[rank] == "ok");
  }
}

HostBuffer::HostBuffer(std::size_t bytes) {
  auto made = host_memory().allocate(bytes);
  if (!made.ok()) throw std::runtime_error(made.error().to_string());
  base_ = static_cast<std::byte*>(made.value());
}

HostBuffer::~HostBuffer() {
  static_cast<void>(host_memory().free(base_));
}

}  // namespace oriel::window
