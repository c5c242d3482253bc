// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "perf/rank_set.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/try.hpp"
#include "common/process.hpp"
#include "perf/backend.hpp"

namespace oriel::perf {
namespace {

using std::chrono::milliseconds;

// Extra wait of the coordinator after the timeout, at which a rank fails by itself and reports why.
constexpr milliseconds kSlack{1500};
// Time for the other ranks to answer once one has failed.
constexpr milliseconds kAfterFailure{500};
constexpr milliseconds kEndOfProcess{5000};
constexpr int kFirstSocket = 3;  // first descriptor after the standard streams

// Variables that disable NVLink multicast. On shared machines, a program that fails while using
// multicast can put the GPUs out of service for everybody.
constexpr std::pair<const char*, const char*> kAlwaysSet[] = {
    {"NCCL_NVLS_ENABLE", "0"},
    {"TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"},
    {"NVSHMEM_DISABLE_NVLS", "1"},
};

// Reaps a child; returns its wait status, or nothing if it has not ended by the deadline.
std::optional<int> wait_for_end(pid_t pid, Deadline deadline) {
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(pid, &status, WNOHANG);
    if (ended == pid) return status;
    if (ended < 0 && errno != EINTR) return std::nullopt;
    if (deadline.expired(SteadyClock::instance().now())) return std::nullopt;
    ::usleep(2000);
  }
}

// Closes all descriptors but the standard ones and those of the ranks. If a rank held
// another rank's socket, that rank would not see the connection close.
void keep_only(std::vector<WorkerRank>& worker_ranks) {
  std::vector<unsigned> kept;
  for (WorkerRank& worker_rank : worker_ranks) {
    worker_rank.coordinator =
        Channel(OwnedFd(::fcntl(worker_rank.coordinator.fd(), F_DUPFD_CLOEXEC, kFirstSocket)));
    kept.push_back(static_cast<unsigned>(worker_rank.coordinator.fd()));
  }
  std::sort(kept.begin(), kept.end());
  unsigned next = kFirstSocket;
  for (const unsigned fd : kept) {
    if (fd > next) ::close_range(next, fd - 1, 0);
    next = fd + 1;
  }
  ::close_range(next, ~0u, 0);
}

}  // namespace

void become_workers(const Options& options, const Contestant& contestant,
                    std::vector<WorkerRank> worker_ranks, const SharedBarrier& barrier) noexcept {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  default_signals();
  keep_only(worker_ranks);
  const int null_fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd >= 0) ::dup2(null_fd, STDIN_FILENO);
  if (null_fd >= kFirstSocket) ::close(null_fd);
  for (const auto& [name, value] : contestant.environment) ::setenv(name.c_str(), value.c_str(), 1);
  for (const auto& [name, value] : kAlwaysSet) ::setenv(name, value, 1);
  const int status = run_workers(options, contestant, worker_ranks, barrier);
  // Runs exit handlers only after success, because they may wait for a device or peer that is gone.
  if (status != 0) ::_exit(status);
  std::exit(0);
}

Result<RankSet> RankSet::start(const Options& options, const Contestant& contestant, int ranks) {
  ORIEL_TRY(SharedBarrier barrier, SharedBarrier::create(ranks));
  RankSet set({}, options.timeout);
  const int per_process = options.threads ? ranks : 1;
  for (int first = 0; first < ranks; first += per_process) {
    std::vector<WorkerRank> worker_ranks;
    for (int rank = first; rank < first + per_process; ++rank) {
      int fds[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return system_error("making a socket pair");
      set.peers_.push_back(Peer{Channel{OwnedFd(fds[0])}, -1, false, "this host"});
      worker_ranks.push_back(WorkerRank{Place{rank, ranks, rank}, Channel{OwnedFd(fds[1])}});
    }
    const pid_t pid = ::fork();
    if (pid < 0) return system_error(fmt::format("starting rank {}", first));
    if (pid == 0) become_workers(options, contestant, std::move(worker_ranks), barrier);
    for (int rank = first; rank < first + per_process; ++rank)
      set.peers_[static_cast<std::size_t>(rank)].pid = pid;
    set.peers_[static_cast<std::size_t>(first)].child = true;
  }
  return set;
}

RankSet::~RankSet() {
  kill_children();
}

void RankSet::kill_children() {
  for (const Peer& peer : peers_)
    if (peer.child) ::kill(peer.pid, SIGKILL);
  for (Peer& peer : peers_) {
    if (peer.child) ::waitpid(peer.pid, nullptr, 0);
    peer.child = false;
  }
}

std::string RankSet::name(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  return fmt::format("rank {} (pid {}, {})", rank, peer.pid, peer.host);
}

std::string RankSet::describe_loss(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.channel.close();
  if (!peer.child) return "closed its connection";
  const auto status = wait_for_end(peer.pid, Deadline::after(milliseconds(500)));
  if (!status) return "closed its connection, but is still there";
  peer.child = false;
  return tools::describe_end(*status);
}

Result<std::vector<Json>> RankSet::receive_hellos() {
  std::vector<int> all(peers_.size());
  for (int rank = 0; rank < size(); ++rank) all[static_cast<std::size_t>(rank)] = rank;
  ORIEL_TRY(auto answers, collect(all, "starting"));
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    peers_[rank].pid = answers[rank].value("pid", -1);
    peers_[rank].host = answers[rank].value("host", "?");
  }
  return answers;
}

Result<std::vector<Json>> RankSet::ask(const Json& request, const std::string& doing) {
  std::vector<int> all;
  for (int rank = 0; rank < size(); ++rank) {
    all.push_back(rank);
    // Ignores a failed send: collect() finds the rank and the reason.
    static_cast<void>(peer(rank).channel.send(request, Deadline::after(std::chrono::seconds(5))));
  }
  return collect(all, doing);
}

Result<Json> RankSet::ask_one(int rank, const Json& request, const std::string& doing) {
  ORIEL_CHECK(peer(rank).channel.send(request, Deadline::after(std::chrono::seconds(5))));
  ORIEL_TRY(auto answers, collect({rank}, doing));
  return std::move(answers.front());
}

// Receives one answer per rank. After the first failure the other ranks have kAfterFailure to
// answer. The error names deaths first, as the likely cause of the survivors' errors.
Result<std::vector<Json>> RankSet::collect(const std::vector<int>& ranks,
                                           const std::string& doing) {
  std::vector<Json> answers(ranks.size());
  std::vector<bool> received(ranks.size(), false);
  std::string deaths, complaints, silent;
  Deadline deadline = Deadline::after(timeout_ + kSlack);
  const auto missing = [&] { return std::count(received.begin(), received.end(), false); };
  while (missing() > 0 && !deadline.expired(SteadyClock::instance().now())) {
    std::vector<pollfd> fds;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      fds.push_back({received[i] ? -1 : peer(ranks[i]).channel.fd(), POLLIN, 0});
    ::poll(fds.data(), fds.size(), 100);
    if (signal_received() != 0)
      return Error(ErrorCode::aborted, fmt::format("interrupted by {} while {}",
                                                   tools::signal_name(signal_received()), doing));
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (received[i] || fds[i].revents == 0) continue;
      received[i] = true;
      Result<Json> answer = peer(ranks[i]).channel.receive(deadline);
      if (answer && !answer->contains("error")) {
        answers[i] = std::move(*answer);
        continue;
      }
      if (answer)
        complaints += fmt::format("{}{}: {}", complaints.empty() ? "" : "; ", name(ranks[i]),
                                  answer->at("error").get<std::string>());
      else
        deaths += fmt::format("{}{} {}", deaths.empty() ? "" : "; ", name(ranks[i]),
                              describe_loss(ranks[i]));
      deadline = earlier(deadline, Deadline::after(kAfterFailure));
    }
  }
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (!received[i]) silent += fmt::format("{}{}", silent.empty() ? "" : ", ", name(ranks[i]));
  if (deaths.empty() && complaints.empty() && silent.empty()) return answers;
  std::string all = deaths;
  if (!complaints.empty()) all += (all.empty() ? "" : "; ") + complaints;
  if (!silent.empty()) all += (all.empty() ? "" : "; ") + fmt::format("no answer from {}", silent);
  return Error(deaths.empty() && complaints.empty() ? ErrorCode::timeout : ErrorCode::remote,
               fmt::format("while {}: {}", doing, all));
}

Status RankSet::finish() {
  ORIEL_CHECK(ask({{"do", "finish"}}, "ending"));
  const Deadline deadline = Deadline::after(kEndOfProcess);
  for (int rank = 0; rank < size(); ++rank) {
    Peer& one = peers_[static_cast<std::size_t>(rank)];
    one.channel.close();
    if (!one.child) continue;
    const auto status = wait_for_end(one.pid, deadline);
    if (!status)
      return Error(ErrorCode::timeout, fmt::format("{} did not end after its work", name(rank)));
    one.child = false;
    if (*status != 0)
      return Error(ErrorCode::remote,
                   fmt::format("after its work {} {}", name(rank), tools::describe_end(*status)));
  }
  return {};
}

Result<int> count_devices_in_child() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return system_error("making a pipe");
  const OwnedFd reader(fds[0]);
  OwnedFd writer(fds[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return system_error("starting a child that counts GPUs");
  if (pid == 0) {
    default_signals();
    const int found = count_cuda_devices();
    static_cast<void>(!::write(writer.get(), &found, sizeof found));
    ::_exit(0);
  }
  writer.reset();
  int devices = 0;
  const Status ready = wait_ready(reader.get(), POLLIN, Deadline::after(std::chrono::seconds(60)));
  const bool counted =
      ready.ok() && ::read(reader.get(), &devices, sizeof devices) == sizeof devices;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  ORIEL_CHECK(Status(ready));
  return counted ? devices : 0;  // a driver that crashes the child counts as no driver
}

}  // namespace oriel::perf
