// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "scale/wire_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <sys/wait.h>
#include <unistd.h>

#include "boot/auth/secret.hpp"
#include "comm/network/soft_port.hpp"
#include "net/fabric/fabric_frame.hpp"
#include "net/fabric/wire_fabric.hpp"
#include "net/wire/wire_format.hpp"
#include "scale/model.hpp"
#include "scale/model_results.hpp"

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

/// Reports the memory that creating the wire takes, together with `details`.
void report_made(int size, const net::WireFabric::Options& options, bench::Fields details) {
  const Held before = held_now();
  const auto wire = net::WireFabric::create(options);
  const Held after = held_now();
  if (wire.ok()) {
    details.add("provider", wire.value()->provider())
        .add("mapped_mib", after.mapped_mib - before.mapped_mib);
  } else {
    details.add("error", wire.error().message());
  }
  results().result("wire", bench::Fields().add("ranks", size), "MiB",
                   wire.ok() ? after.resident_mib - before.resident_mib : 0, details);
}

}  // namespace

void report_wire(int size) {
  if (size <= kRanksOfNode) return;
  const auto peers = static_cast<std::size_t>(size - kRanksOfNode);
  net::WireFabric::Options options;
  options.key = boot::Key::random();
  options.receives = comm::SoftPort::fabric_buffers(peers, comm::SoftPort::kFabricReceives);
  options.sends = comm::SoftPort::fabric_buffers(peers, options.sends);
  options.payload_bytes_most = comm::SoftPort::kFabricPieceBytes;
  const double received = net::kFrameHeadBytes + net::kWireHeadBytesMost +
                          static_cast<double>(options.payload_bytes_most);
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    report_made(size, options,
                bench::Fields()
                    .add("receives", options.receives)
                    .add("sends", options.sends)
                    .add("receives_mib", options.receives * received / (1 << 20)));
    ::_exit(0);
  }
  if (child > 0) static_cast<void>(::waitpid(child, nullptr, 0));
}

}  // namespace oriel::scale
