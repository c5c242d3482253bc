// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/try.hpp"
#include "common/command_line.hpp"
#include "common/process.hpp"
#include "perf/launcher_environment.hpp"
#include "perf/measurement.hpp"
#include "perf/options.hpp"
#include "perf/rank_set.hpp"

namespace oriel::perf {
namespace {

constexpr int kRanksOnCpus = 2;

std::vector<const Contestant*> contestants(const Options& options) {
  std::vector<const Contestant*> list{&options.ours};
  if (options.against) list.push_back(&*options.against);
  return list;
}

Result<int> choose_ranks(const Options& options) {
  if (options.ranks > 0) return options.ranks;
  if (options.backend == BackendKind::host) return kRanksOnCpus;
  ORIEL_TRY(const int devices, count_devices_in_child());
  return devices > 0 ? devices : kRanksOnCpus;
}

Status check_root(const Options& options, int ranks) {
  if (!has_root(options.collective) || options.root < ranks) return {};
  return Error(ErrorCode::invalid_argument,
               fmt::format("--root is {}, but there are {} ranks", options.root, ranks));
}

// Runs the measurement; returns 0, or 1 if a result was wrong or bits differed between ranks.
// Returns 0 after --serve, which prints the number of wrong results of each round instead.
Result<int> coordinate(const Options& options, RankSet ours, std::optional<RankSet> theirs) {
  Session session(options, std::move(ours), std::move(theirs));
  ORIEL_CHECK(options.serve ? session.serve() : session.run());
  return session.anything_wrong() ? 1 : 0;
}

Result<int> run_here(const Options& options) {
  ORIEL_TRY(const int ranks, choose_ranks(options));
  ORIEL_CHECK(check_root(options, ranks));
  ORIEL_TRY(RankSet ours, RankSet::start(options, options.ours, ranks));
  std::optional<RankSet> theirs;
  if (options.against) {
    ORIEL_TRY(RankSet started, RankSet::start(options, *options.against, ranks));
    theirs.emplace(std::move(started));
  }
  return coordinate(options, std::move(ours), std::move(theirs));
}

// Forked workers of one process of a launcher, one per library. They end when the coordinator
// closes their connections, or with this process.
class LocalWorkers {
 public:
  LocalWorkers() = default;
  LocalWorkers(const LocalWorkers&) = delete;
  LocalWorkers& operator=(const LocalWorkers&) = delete;
  ~LocalWorkers() { stop(); }

  Status start(const Options& options, const LauncherEnvironment& environment, int set) {
    const pid_t pid = ::fork();
    if (pid < 0) return system_error("starting a worker");
    if (pid == 0) {
      default_signals();
      const auto deadline = Deadline::after(options.timeout);
      Result<Channel> channel = join_meeting(environment, options.rendezvous, set, deadline);
      if (!channel) {
        fmt::print(stderr, "oriel-perf: {}\n", channel.error().to_string());
        ::_exit(1);
      }
      std::vector<WorkerRank> worker_ranks;
      worker_ranks.push_back({Place{environment.rank, environment.ranks, environment.local_rank},
                              std::move(*channel)});
      become_workers(options, *contestants(options)[static_cast<std::size_t>(set)],
                     std::move(worker_ranks), SharedBarrier());
    }
    pids_.push_back(pid);
    return {};
  }

  /// Waits for all workers; returns 0, or kExitFailure if one failed.
  Result<int> wait() {
    int result = 0;
    while (!pids_.empty() && signal_received() == 0) {
      int status = 0;
      if (::waitpid(pids_.back(), &status, 0) != pids_.back()) continue;
      pids_.pop_back();
      if (status != 0) result = tools::kExitFailure;
    }
    if (pids_.empty()) return result;
    return Error(ErrorCode::aborted,
                 fmt::format("interrupted by {}", tools::signal_name(signal_received())));
  }

 private:
  void stop() {
    for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
  }
  std::vector<pid_t> pids_;
};

Result<int> run_in_launcher(const Options& options, const LauncherEnvironment& environment) {
  ORIEL_CHECK(check_root(options, environment.ranks));
  const auto all = contestants(options);
  const int sets = static_cast<int>(all.size());
  LocalWorkers workers;
  if (environment.rank != 0) {
    for (int set = 0; set < sets; ++set) ORIEL_CHECK(workers.start(options, environment, set));
    return workers.wait();
  }
  ORIEL_TRY(Meeting meeting, Meeting::open(environment, options.rendezvous));
  for (int set = 0; set < sets; ++set) ORIEL_CHECK(workers.start(options, environment, set));
  ORIEL_TRY(auto peers, meeting.gather(sets, environment.ranks, Deadline::after(options.timeout)));
  RankSet ours(std::move(peers[0]), options.timeout);
  std::optional<RankSet> theirs;
  if (sets > 1) theirs.emplace(std::move(peers[1]), options.timeout);
  ORIEL_TRY(const int result, coordinate(options, std::move(ours), std::move(theirs)));
  ORIEL_TRY(const int ended, workers.wait());
  return result != 0 ? result : ended;
}

Result<int> run(const Options& options) {
  end_waits_on_signals();
  if (options.ranks > 0) return run_here(options);
  ORIEL_TRY(const auto environment, find_launcher());
  if (!environment || environment->ranks == 1) return run_here(options);
  if (options.threads)
    return Error(
        ErrorCode::invalid_usage,
        fmt::format("--threads: {} ranks were started as processes ({}); start oriel-perf by "
                    "itself, or name the number of threads by -g",
                    environment->ranks, environment->launcher));
  return run_in_launcher(options, *environment);
}

}  // namespace
}  // namespace oriel::perf

int main(int argc, char** argv) {
  return oriel::tools::guarded_main("oriel-perf", [&] {
    const auto parsed = oriel::perf::parse_options(argc, argv);
    if (const int* status = std::get_if<int>(&parsed)) return *status;
    const auto result = oriel::perf::run(std::get<oriel::perf::Options>(parsed));
    if (result) return *result;
    fmt::print(stderr, "oriel-perf: {}\n", result.error().to_string());
    const int signal = oriel::perf::signal_received();
    return signal != 0 ? 128 + signal : oriel::tools::kExitFailure;
  });
}
