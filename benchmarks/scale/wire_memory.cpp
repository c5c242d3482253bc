// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "scale/wire_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "boot/auth/secret.hpp"
#include "comm/network/network_soft.hpp"
#include "net/fabric/fabric_frame.hpp"
#include "net/fabric/wire_fabric.hpp"
#include "net/wire/wire_format.hpp"
#include "scale/model.hpp"

namespace oriel::scale {
namespace {

struct Held {
  double mapped_mib = 0;
  double resident_mib = 0;
};

Held held_now() {
  unsigned long mapped = 0, resident = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return {};
  if (std::fscanf(file, "%lu %lu", &mapped, &resident) != 2) mapped = resident = 0;  // NOLINT
  std::fclose(file);
  const double page = static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 20);
  return {static_cast<double>(mapped) * page, static_cast<double>(resident) * page};
}

std::string made(const net::WireFabric::Options& options) {
  const Held before = held_now();
  const auto wire = net::WireFabric::create(options);
  if (!wire.ok()) return fmt::format("\"error\": \"{}\"", wire.error().message());
  const Held after = held_now();
  return fmt::format("\"provider\": \"{}\", \"mapped_mib\": {:.0f}, \"resident_mib\": {:.0f}",
                     wire.value()->provider(), after.mapped_mib - before.mapped_mib,
                     after.resident_mib - before.resident_mib);
}

}  // namespace

void print_wire(int size) {
  if (size <= kRanksOfNode) return;
  const auto peers = static_cast<std::size_t>(size - kRanksOfNode);
  net::WireFabric::Options options;
  options.key = boot::Key::random();
  options.receives = comm::SoftNetwork::fabric_buffers(peers, comm::SoftNetwork::kFabricReceives);
  options.sends = comm::SoftNetwork::fabric_buffers(peers, options.sends);
  options.payload_bytes_most = comm::SoftNetwork::kFabricPieceBytes;
  const double received = net::kFrameHeadBytes + net::kWireHeadBytesMost +
                          static_cast<double>(options.payload_bytes_most);
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    fmt::print(
        "{{\"kind\": \"wire\", \"ranks\": {}, \"receives\": {}, \"sends\": {}, "
        "\"receives_mib\": {:.0f}, {}}}\n",
        size, options.receives, options.sends, options.receives * received / (1 << 20),
        made(options));
    std::fflush(stdout);
    ::_exit(0);
  }
  if (child > 0) static_cast<void>(::waitpid(child, nullptr, 0));
}

}  // namespace oriel::scale
