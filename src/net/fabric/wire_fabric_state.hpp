// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "net/fabric/fabric_end.hpp"
#include "net/fabric/fabric_reads.hpp"
#include "net/fabric/fabric_receiver.hpp"
#include "net/fabric/fabric_sender.hpp"
#include "net/fabric/wire_fabric.hpp"

namespace oriel::net {

/// State and progress of a fabric wire. Dispatches completions to the parts, and opens and cuts the
/// endpoint that they share. The lock guards all that changes after open().
struct WireFabric::State {
  State(const FabricTable& table, const Options& options, FabricInfo found)
      : info(std::move(found)), end{table, options, {}, {}, {}, {}} {}
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Status open();
  void poll();
  bool send(fabric::Peer& peer, WireMessage& message);
  void cut(const std::vector<fabric::Peer*>& whom);
  /// Returns the peer, if messages may be sent to it; else null.
  fabric::Peer* find_open(WireAddress address) {
    fabric::Peer* const peer = is_cut ? nullptr : end.peers.find(address);
    return peer != nullptr && !peer->is_cut ? peer : nullptr;
  }

  std::mutex mutex;
  FabricInfo info;  // moved away by open()
  Bytes encoded;
  fabric::End end;
  fabric::Receiver receiver{end};
  fabric::Sender sender{end};
  fabric::Reads reads{end};
  bool is_cut = false;
  bool has_polled = false;  // since receive() last returned false

 private:
  Status open_parts();
  void complete(const fabric::Operation& operation, std::size_t bytes);
  void read_error();
  void drain_completions();
};

}  // namespace oriel::net
