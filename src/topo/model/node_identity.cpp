// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/model/node_identity.hpp"

#include <sys/stat.h>
#include <sys/utsname.h>

namespace oriel::topo {
namespace {

/// Adds a text to an FNV-1a hash with 64 bits (Fowler, Noll, Vo). Adds the length first, so that
/// the boundary between two texts counts.
std::uint64_t add_text(std::uint64_t hash, std::string_view text) {
  constexpr std::uint64_t kPrime = 0x100000001b3u;
  hash = (hash ^ text.size()) * kPrime;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * kPrime;
  return hash;
}

constexpr std::uint64_t kHashBasis = 0xcbf29ce484222325u;

}  // namespace

HostFacts read_host_facts(const FileTree& files) {
  HostFacts facts;
  utsname name{};
  if (::uname(&name) == 0) facts.name = static_cast<const char*>(name.nodename);
  facts.machine_id = files.read("/etc/machine-id").value_or("");
  facts.boot_id = files.read("/proc/sys/kernel/random/boot_id").value_or("");
  return facts;
}

std::uint64_t host_hash(const HostFacts& facts, std::string_view host_override) {
  if (!host_override.empty()) return add_text(kHashBasis, host_override);
  std::uint64_t hash = add_text(kHashBasis, facts.name);
  hash = add_text(hash, facts.machine_id);
  return add_text(hash, facts.boot_id);
}

NodeIdentity read_node_identity(std::string_view host_override, const FileTree& files) {
  NodeIdentity identity;
  identity.named = !host_override.empty();
  identity.host = host_hash(read_host_facts(files), host_override);
  struct stat space {};
  if (::stat("/proc/self/ns/net", &space) == 0) identity.network_namespace = space.st_ino;
  return identity;
}

}  // namespace oriel::topo
