// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/wire_fabric.hpp"

// Replaces wire_fabric.cpp in builds without libfabric's header: create() fails, so no wire exists.
namespace oriel::net {

struct WireFabric::State {};

WireFabric::WireFabric(std::unique_ptr<State> state) : state_(std::move(state)) {}
WireFabric::~WireFabric() = default;

void WireFabric::prepare(const std::string& /*provider*/) {}

Result<std::unique_ptr<WireFabric>> WireFabric::create(const Options& /*options*/) {
  return Error(ErrorCode::invalid_usage, "Oriel was built without libfabric")
      .with_hint("install the package libfabric-dev and build Oriel again");
}

Bytes WireFabric::local_address() const {
  return {};
}
std::string WireFabric::provider() const {
  return {};
}
// NOLINTBEGIN(performance-unnecessary-value-param): the signature is that of the real wire
Result<WireAddress> WireFabric::add_peer(ByteView /*address*/, std::string /*name*/,
                                         std::vector<std::uint32_t> /*queues*/) {
  return Error(ErrorCode::internal, "there is no wire to add a peer to");
}
// NOLINTEND(performance-unnecessary-value-param)
WireAddress WireFabric::address() const {
  return {};
}
bool WireFabric::send(WireAddress /*to*/, WireMessage& /*message*/) {
  return true;
}
bool WireFabric::receive(WireMessage& /*message*/) {
  return false;
}
void WireFabric::end_turn() {}
WireSign WireFabric::sign_of(WireAddress /*peer*/) {
  return {};
}
bool WireFabric::can_read(WireAddress /*peer*/) {
  return false;
}
std::optional<WireSource> WireFabric::expose(WireAddress /*peer*/, const std::byte* /*from*/,
                                             std::size_t /*bytes*/) {
  return std::nullopt;
}
void WireFabric::revoke(WireAddress /*peer*/, const WireSource& /*source*/) {}
std::shared_ptr<RendezvousRead> WireFabric::rendezvous_read(WireAddress /*peer*/,
                                                            const WireSource& /*source*/,
                                                            const WireTarget& /*target*/) {
  return nullptr;
}
bool WireFabric::is_reading(std::uint32_t /*key*/) {
  return false;
}
std::vector<WireAddress> WireFabric::reads_by(std::uint32_t /*key*/) {
  return {};
}
bool WireFabric::cut(std::span<const WireAddress> /*peers*/) {
  return false;
}
Status WireFabric::status() const {
  return {};
}
Status WireFabric::peer_status(WireAddress /*peer*/) const {
  return {};
}
int WireFabric::wait_descriptor() const {
  return -1;
}
bool WireFabric::may_sleep() {
  return false;
}
Status WireFabric::flush(Deadline /*deadline*/) {
  return {};
}

}  // namespace oriel::net
