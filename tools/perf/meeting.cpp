// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/try.hpp"
#include "base/write_file.hpp"
#include "perf/launcher_environment.hpp"

namespace oriel::perf {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Number of ports tried from MASTER_PORT on, because the launcher may use the first.
constexpr int kPorts = 8;
constexpr seconds kHandshake{2};

// Rendezvous address: a range of ports of a host, or a file that names the host and port.
struct Spot {
  std::string host;
  int first_port = 0;
  int ports = 1;
  std::string file;
};

Result<Spot> find_spot(const LauncherEnvironment& environment, const std::string& rendezvous) {
  Spot spot;
  if (rendezvous.starts_with("file:")) {
    spot.file = rendezvous.substr(5);
    return spot;
  }
  if (!rendezvous.empty()) {
    const std::size_t colon = rendezvous.rfind(':');
    const char* end = rendezvous.data() + rendezvous.size();
    if (colon == std::string::npos || colon == 0 ||
        std::from_chars(rendezvous.data() + colon + 1, end, spot.first_port).ptr != end ||
        spot.first_port < 1 || spot.first_port > 65535)
      return Error(ErrorCode::invalid_argument,
                   fmt::format("--rendezvous {}: neither host:port nor file:PATH", rendezvous));
    spot.host = rendezvous.substr(0, colon);
    return spot;
  }
  if (!environment.master_address.empty()) {
    spot.host = environment.master_address;
    spot.first_port = environment.master_port + (environment.port_in_use ? 1 : 0);
    spot.ports = kPorts;
    return spot;
  }
  if (environment.local_ranks < environment.ranks)
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} names ranks on several hosts, but no place to meet",
                             environment.launcher))
        .with_hint("set MASTER_ADDR and MASTER_PORT, or --rendezvous host:port");
  spot.file = fmt::format("/tmp/oriel-perf-{}-{}", ::getuid(), environment.daemon);
  return spot;
}

// Returns a token by which ranks of another run are recognised; the token is no secret.
std::string make_token(const LauncherEnvironment& environment, const Spot& spot) {
  const char* run = std::getenv("TORCHELASTIC_RUN_ID");
  return fmt::format("oriel-perf 1 {} {} {}:{} {}", environment.ranks, run ? run : "", spot.host,
                     spot.first_port, spot.file);
}

struct AddressDeleter {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, AddressDeleter>;

Result<Addresses> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (status != 0)
    return Error(ErrorCode::system,
                 fmt::format("cannot resolve '{}': {}", host, ::gai_strerror(status)));
  return Addresses(list);
}

Result<OwnedFd> connect_to(const std::string& host, int port) {
  ORIEL_TRY(const Addresses addresses, resolve(host, port));
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    OwnedFd fd(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) continue;
    if (::connect(fd.get(), one->ai_addr, one->ai_addrlen) != 0 && errno != EINPROGRESS) continue;
    if (!wait_ready(fd.get(), POLLOUT, Deadline::after(kHandshake))) continue;
    int status = 0;
    socklen_t length = sizeof status;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &status, &length);
    if (status == 0) return fd;
  }
  return Error(ErrorCode::remote, fmt::format("nobody listens at {}:{}", host, port));
}

Result<OwnedFd> listen_at(const sockaddr* address, socklen_t length) {
  OwnedFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd.get(), address, length) != 0 || ::listen(fd.get(), 1024) != 0)
    return system_error("listening for the ranks");
  return fd;
}

Result<OwnedFd> listen_in(const Spot& spot) {
  // Listens at every address of this host, because the host name may resolve to an outer address.
  Status last;
  for (int port = spot.first_port; port < spot.first_port + spot.ports && port < 65536; ++port) {
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(static_cast<std::uint16_t>(port));
    Result<OwnedFd> fd = listen_at(reinterpret_cast<const sockaddr*>(&any), sizeof any);
    if (!fd) {
      sockaddr_in any4{};
      any4.sin_family = AF_INET;
      any4.sin_port = any.sin6_port;
      fd = listen_at(reinterpret_cast<const sockaddr*>(&any4), sizeof any4);
    }
    if (fd) return fd;
    last = fd.error();
  }
  return Error(ErrorCode::system, fmt::format("no port from {} on is free", spot.first_port))
      .with_hint(last.error().message());
}

Result<OwnedFd> listen_for_file(const Spot& spot, const std::string& token) {
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof loopback;
  auto* raw = reinterpret_cast<sockaddr*>(&loopback);
  ORIEL_TRY(OwnedFd fd, listen_at(raw, length));
  if (::getsockname(fd.get(), raw, &length) != 0) return system_error("reading a socket's address");
  ORIEL_CHECK(
      write_file(spot.file, fmt::format("127.0.0.1 {}\n{}\n", ntohs(loopback.sin_port), token)));
  return fd;
}

Result<Channel> connect_to_coordinator(const std::string& host, int port, const Json& hello) {
  ORIEL_TRY(OwnedFd fd, connect_to(host, port));
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  Channel channel(std::move(fd));
  ORIEL_CHECK(channel.send(hello, Deadline::after(kHandshake)));
  ORIEL_TRY(const Json answer, channel.receive(Deadline::after(kHandshake)));
  if (answer.value("welcome", "") != hello.at("token").get<std::string>())
    return Error(ErrorCode::remote, fmt::format("{}:{} is not this run's rank 0", host, port));
  return channel;
}

/// Returns the ranks that have not connected, as "rank 1" or "ranks 1, 2".
std::string missing_ranks(const std::vector<std::vector<RankSet::Peer>>& found) {
  std::set<std::size_t> missing;
  for (const auto& set : found) {
    for (std::size_t rank = 0; rank < set.size(); ++rank) {
      if (!set[rank].channel) missing.insert(rank);
    }
  }
  return fmt::format("{} {}", missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "));
}

}  // namespace

Meeting::~Meeting() {
  if (!file_.empty() && socket_) std::remove(file_.c_str());
}

Result<Meeting> Meeting::open(const LauncherEnvironment& environment,
                              const std::string& rendezvous) {
  ORIEL_TRY(const Spot spot, find_spot(environment, rendezvous));
  Meeting meeting;
  meeting.token_ = make_token(environment, spot);
  if (spot.file.empty()) {
    ORIEL_TRY(meeting.socket_, listen_in(spot));
    meeting.place_ = fmt::format("{}, a port from {} on", spot.host, spot.first_port);
  } else {
    ORIEL_TRY(meeting.socket_, listen_for_file(spot, meeting.token_));
    meeting.place_ = meeting.file_ = spot.file;
  }
  return meeting;
}

Result<std::vector<std::vector<RankSet::Peer>>> Meeting::gather(int sets, int ranks,
                                                                Deadline deadline) {
  std::vector<std::vector<RankSet::Peer>> found(static_cast<std::size_t>(sets));
  for (auto& set : found) set.resize(static_cast<std::size_t>(ranks));
  for (int missing = sets * ranks; missing > 0;) {
    Status waited = wait_ready(socket_.get(), POLLIN, deadline);
    if (!waited.ok()) {
      return std::move(waited).error().with_context(
          fmt::format("rank 0 waiting at {} for {} of {}", place_, missing_ranks(found), ranks));
    }
    OwnedFd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) continue;
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    RankSet::Peer peer{Channel(std::move(fd)), -1, false, "?"};
    const Result<Json> hello = peer.channel.receive(Deadline::after(kHandshake));
    if (!hello || hello->value("token", "") != token_) continue;  // not a rank of this run
    const int set = hello->value("set", -1);
    const int rank = hello->value("rank", -1);
    if (set < 0 || set >= sets || rank < 0 || rank >= ranks) continue;
    RankSet::Peer& slot = found[static_cast<std::size_t>(set)][static_cast<std::size_t>(rank)];
    if (slot.channel) continue;  // this rank has connected before
    if (!peer.channel.send({{"welcome", token_}}, Deadline::after(kHandshake))) continue;
    slot = std::move(peer);
    --missing;
  }
  return found;
}

Result<Channel> join_meeting(const LauncherEnvironment& environment, const std::string& rendezvous,
                             int set, Deadline deadline) {
  ORIEL_TRY(const Spot spot, find_spot(environment, rendezvous));
  const Json hello{
      {"token", make_token(environment, spot)}, {"set", set}, {"rank", environment.rank}};
  Status last = Error(ErrorCode::timeout, "rank 0 did not appear");
  while (!deadline.expired(SteadyClock::instance().now())) {
    Spot where = spot;
    if (!spot.file.empty()) {
      std::ifstream in(spot.file);
      in >> where.host >> where.first_port;
      if (!in) where.ports = 0;  // rank 0 has not written the file yet
    }
    for (int port = where.first_port; port < where.first_port + where.ports; ++port) {
      Result<Channel> channel = connect_to_coordinator(where.host, port, hello);
      if (channel) return channel;
      last = channel.error();
    }
    ::usleep(50'000);
  }
  return std::move(last.error())
      .with_context(fmt::format("rank {} joining the other ranks", environment.rank));
}

}  // namespace oriel::perf
