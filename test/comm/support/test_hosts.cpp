// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/support/test_hosts.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/fabric/wire_fabric.hpp"
#include "support/fabric_provider_name.hpp"

namespace oriel::test {
namespace {

using SteadyTime = std::chrono::steady_clock;

void check(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what + ": " + std::strerror(errno));
}

// In a thread, which then ends, so that the caller stays where it is.
OwnedFd new_namespace() {
  OwnedFd made;
  std::thread([&made] {
    if (::unshare(CLONE_NEWNET) != 0) return;
    made = OwnedFd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  }).join();
  return made;
}

void move_to(const OwnedFd& space) {
  check(::setns(space.get(), CLONE_NEWNET) == 0, "entering a network namespace");
}

int status_of(const std::string& script, const OwnedFd* space) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (space != nullptr && ::setns(space->get(), CLONE_NEWNET) != 0) ::_exit(126);
    ::execl("/bin/sh", "sh", "-e", "-c", script.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 125;
  return WEXITSTATUS(status);
}

void run_in(const OwnedFd& space, const std::string& script) {
  const int status = status_of(script, &space);
  if (status != 0) throw std::runtime_error(fmt::format("status {} of: {}", status, script));
}

std::string address_of(std::size_t host, int end, int link = 0) {
  return fmt::format("10.{}.{}.{}", 77 + link, host + 1, end);
}

// What makes a link of a host's known to it, also after it was down.
std::string set_up_link(std::size_t host, int link) {
  return fmt::format("ip link set net{0} up; ip route replace 10.{1}.0.0/16 via {2}", link,
                     77 + link, address_of(host, 1, link));
}

// The packets that are on their way, in a process of their own.
class Relay {
 public:
  explicit Relay(std::chrono::milliseconds delay) : delay_(delay) {}

  void add(const OwnedFd& space, std::size_t host) {
    move_to(space);
    OwnedFd device(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    ifreq wish{};
    std::strcpy(wish.ifr_name, "net0");
    wish.ifr_flags = IFF_TUN | IFF_NO_PI;
    check(device && ::ioctl(device.get(), TUNSETIFF, &wish) == 0, "a tun device");
    run_in(space, fmt::format("ip link set lo up; ip addr add {}/24 dev net0; ip link set net0 up; "
                              "ip route add default dev net0",
                              address_of(host, 2)));
    devices_.push_back(std::move(device));
  }

  [[noreturn]] void run() {
    for (;;) {
      std::vector<pollfd> fds;
      for (const OwnedFd& device : devices_) fds.push_back({device.get(), POLLIN, 0});
      ::poll(fds.data(), fds.size(), packets_.empty() ? 1000 : 1);
      for (const OwnedFd& device : devices_) take(device);
      deliver();
    }
  }

 private:
  struct Packet {
    SteadyTime::time_point due;
    std::size_t to;
    std::vector<std::uint8_t> bytes;
  };
  void take(const OwnedFd& device) {
    std::array<std::uint8_t, 2048> bytes;
    for (;;) {
      const ssize_t count = ::read(device.get(), bytes.data(), bytes.size());
      if (count < 20) return;
      const std::size_t to = bytes[18] - std::size_t{1};  // 10.77.K of an IPv4 destination
      if (bytes[0] >> 4 != 4 || to >= devices_.size()) continue;
      packets_.push_back({SteadyTime::now() + delay_, to, {bytes.begin(), bytes.begin() + count}});
    }
  }
  void deliver() {
    const auto now = SteadyTime::now();
    for (; !packets_.empty() && packets_.front().due <= now; packets_.pop_front()) {
      const Packet& packet = packets_.front();
      // One for which there is no room is lost, as packets are.
      if (::write(devices_[packet.to].get(), packet.bytes.data(), packet.bytes.size()) < 0)
        continue;
    }
  }
  std::chrono::milliseconds delay_;
  std::vector<OwnedFd> devices_;
  std::deque<Packet> packets_;
};

/// Ends the program as skipped where there can be no hosts, or no wire over tcp between them.
void skip_without_hosts() {
  std::string lack = TestHosts::lack();
  if (lack.empty()) {
    const auto wire = net::WireFabric::create({.provider = fabric_provider()});
    if (!wire.ok()) lack = wire.error().to_string();
  }
  if (lack.empty()) return;
  std::printf("skipped: %s\n", lack.c_str());
  std::fflush(stdout);
  std::_Exit(77);
}

}  // namespace

std::string TestHosts::lack() {
  if (!new_namespace()) {
    return fmt::format("a network namespace cannot be made: {}", std::strerror(errno));
  }
  if (status_of("command -v ip >/dev/null", nullptr) != 0) return "there is no command ip";
  return {};
}

std::string TestHosts::lack_of_loss() {
  if (status_of("command -v nft >/dev/null", nullptr) != 0) return "there is no command nft";
  const OwnedFd space = new_namespace();
  if (space && status_of("nft add table ip any 2>/dev/null", &space) == 0) return {};
  return "the kernel has no nftables";
}

TestHosts::TestHosts(int count, std::chrono::milliseconds delay) {
  skip_without_hosts();
  for (int i = 0; i < count; ++i) {
    hosts_.push_back(new_namespace());
    check(static_cast<bool>(hosts_.back()), "a network namespace");
  }
  if (delay.count() == 0) {
    make_router(1);
  } else {
    start_relay(delay);
  }
}

TestHosts::TestHosts(int count, Links links) {
  skip_without_hosts();
  for (int i = 0; i < count; ++i) {
    hosts_.push_back(new_namespace());
    check(static_cast<bool>(hosts_.back()), "a network namespace");
  }
  make_router(links.count);
}

TestHosts TestHosts::with_links(int count, int links) {
  return {count, Links{links}};
}

void TestHosts::make_router(int links) {
  router_ = new_namespace();
  check(static_cast<bool>(router_), "a network namespace");
  std::string script = "echo 1 > /proc/sys/net/ipv4/ip_forward";
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    for (int link = 0; link < links; ++link) {
      script += fmt::format(
          "; ip link add to{0}-{1} type veth peer name net{1} netns /proc/{2}/fd/{3}"
          "; ip addr add {4}/24 dev to{0}-{1}; ip link set to{0}-{1} up",
          i, link, ::getpid(), hosts_[i].get(), address_of(i, 1, link));
    }
  }
  run_in(router_, script);
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    std::string own = "ip link set lo up";
    for (int link = 0; link < links; ++link) {
      own += fmt::format("; ip addr add {}/24 dev net{}; {}", address_of(i, 2, link), link,
                         set_up_link(i, link));
    }
    run_in(hosts_[i], own);
  }
  // The kernel takes its time to find that a link has come up.
  for (const OwnedFd& host : hosts_) {
    for (int link = 0; link < links; ++link) {
      run_in(host, fmt::format("for i in $(seq 500); do ip -o link show net{} | grep -q 'state UP' "
                               "&& exit 0; sleep 0.02; done; exit 1",
                               link));
    }
  }
}

void TestHosts::start_relay(std::chrono::milliseconds delay) {
  std::array<int, 2> ends{};
  check(::pipe2(ends.data(), O_CLOEXEC) == 0, "a pipe");
  const OwnedFd reader(ends[0]), writer(ends[1]);
  relay_ = ::fork();
  check(relay_ >= 0, "a process");
  if (relay_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      Relay relay(delay);
      for (std::size_t i = 0; i < hosts_.size(); ++i) relay.add(hosts_[i], i);
      if (::write(writer.get(), "", 1) == 1) relay.run();
    } catch (const std::exception& error) {
      if (::write(writer.get(), error.what(), std::strlen(error.what())) < 0) ::_exit(2);
    }
    ::_exit(1);
  }
  std::array<char, 256> said{};
  check(::read(reader.get(), said.data(), said.size() - 1) > 0, "a word from the relay");
  if (said[0] != '\0') throw std::runtime_error(said.data());
}

TestHosts::~TestHosts() {
  if (relay_ <= 0) return;
  ::kill(relay_, SIGKILL);
  ::waitpid(relay_, nullptr, 0);
}

void TestHosts::enter(int host) const {
  move_to(hosts_[static_cast<std::size_t>(host)]);
}

void TestHosts::cut(int host, int link) const {
  run_in(hosts_[static_cast<std::size_t>(host)], fmt::format("ip link set net{} down", link));
}

void TestHosts::mend(int host, int link) const {
  const auto at = static_cast<std::size_t>(host);
  run_in(hosts_[at], set_up_link(at, link));
}

void TestHosts::refuse_detours() const {
  for (const OwnedFd& host : hosts_) {
    run_in(host, "for i in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 > $i; done");
  }
}

void TestHosts::drop(int percent) const {
  run_in(router_, fmt::format("nft add table ip loss; nft 'add chain ip loss some {{ type filter "
                              "hook forward priority 0; }}'; nft 'add rule ip loss some numgen "
                              "random mod 100 < {} drop'",
                              percent));
}

}  // namespace oriel::test
