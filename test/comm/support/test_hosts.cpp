// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/support/test_hosts.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/fabric/wire_fabric.hpp"
#include "support/fabric_provider_name.hpp"
#include "support/in_child.hpp"

namespace oriel::test {
namespace {

void check(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what + ": " + std::strerror(errno));
}

// Makes the namespace in a short-lived thread, so that the caller stays in its own namespace.
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
  return status_of_child([&] {
    if (space != nullptr && ::setns(space->get(), CLONE_NEWNET) != 0) return 126;
    return ::execl("/bin/sh", "sh", "-e", "-c", script.c_str(), nullptr);
  });
}

void run_in(const OwnedFd& space, const std::string& script) {
  const int status = status_of(script, &space);
  if (status != 0) throw std::runtime_error(fmt::format("status {} of: {}", status, script));
}

std::string address_of(std::size_t host, int end, int link = 0) {
  return fmt::format("10.{}.{}.{}", 77 + link, host + 1, end);
}

// Returns the commands that bring up a host's link, also after it was down.
std::string set_up_link(std::size_t host, int link) {
  return fmt::format("ip link set net{0} up; ip route replace 10.{1}.0.0/16 via {2}", link,
                     77 + link, address_of(host, 1, link));
}

/// Ends the program as skipped if hosts cannot be made, or if no fabric wire is available.
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

TestHosts::TestHosts(int count, int links) {
  skip_without_hosts();
  for (int i = 0; i < count; ++i) {
    hosts_.push_back(new_namespace());
    check(static_cast<bool>(hosts_.back()), "a network namespace");
  }
  make_router(links);
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
  // Waits, because the kernel takes a while to detect that a link is up.
  for (const OwnedFd& host : hosts_) {
    for (int link = 0; link < links; ++link) {
      run_in(host, fmt::format("for i in $(seq 500); do ip -o link show net{} | grep -q 'state UP' "
                               "&& exit 0; sleep 0.02; done; exit 1",
                               link));
    }
  }
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
