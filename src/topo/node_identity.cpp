// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/node_identity.hpp"

#include <fstream>

#include <sys/stat.h>
#include <sys/utsname.h>

namespace oriel::topo {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// FNV-1a with 64 bits (Fowler, Noll, Vo). The length goes in first, so that the border between
/// two texts counts.
std::uint64_t add_text(std::uint64_t hash, std::string_view text) {
  constexpr std::uint64_t kPrime = 0x100000001b3u;
  hash = (hash ^ text.size()) * kPrime;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * kPrime;
  return hash;
}

constexpr std::uint64_t kHashBasis = 0xcbf29ce484222325u;

}  // namespace

HostFacts read_host_facts() {
  HostFacts facts;
  utsname name{};
  if (::uname(&name) == 0) facts.name = static_cast<const char*>(name.nodename);
  facts.machine_id = first_line("/etc/machine-id");
  facts.boot_id = first_line("/proc/sys/kernel/random/boot_id");
  return facts;
}

std::uint64_t host_hash(const HostFacts& facts, std::string_view host_override) {
  if (!host_override.empty()) return add_text(kHashBasis, host_override);
  std::uint64_t hash = add_text(kHashBasis, facts.name);
  hash = add_text(hash, facts.machine_id);
  return add_text(hash, facts.boot_id);
}

NodeIdentity read_node_identity(std::string_view host_override) {
  NodeIdentity identity;
  identity.host = host_hash(read_host_facts(), host_override);
  struct stat space {};
  if (::stat("/proc/self/ns/net", &space) == 0) identity.network_namespace = space.st_ino;
  return identity;
}

}  // namespace oriel::topo
