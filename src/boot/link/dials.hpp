// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "boot/link/dialer.hpp"
#include "boot/link/liveness.hpp"
#include "boot/link/poller.hpp"

namespace oriel::boot {

/// Identity that a rank proves to the ranks it links to.
struct LinkIdentity {
  int rank = 0;
  int size = 1;
  std::uint64_t realm = 0;  ///< the session's number
  Key key;                  ///< for KeyPurpose::link
};

/// Outgoing connections that are not yet authenticated; each is retried until it is. If a peer
/// refuses connections for longer than Retries allows, the peer counts as dead. If local system
/// calls fail for kLocalTimeout, the session ends. `liveness` is informed of both. No member waits.
/// Not thread-safe; the constructor's arguments must outlive the object.
class Dials {
 public:
  static constexpr Duration kLocalTimeout = std::chrono::seconds(1);
  /// Timeout for refused connections. A listener opens before its address is published and stays
  /// open until nobody connects any more.
  static constexpr Duration kRefusalTimeout = std::chrono::milliseconds(200);

  Dials(Poller& poller, const Clock& clock, const LinkIdentity& identity, Liveness& liveness,
        std::function<void(int peer, OwnedFd)> on_authenticated);
  ~Dials();
  Dials(const Dials&) = delete;
  Dials& operator=(const Dials&) = delete;

  /// Starts to connect to a lower rank. Does nothing if the attempt is already in progress.
  Status start(int peer, const SocketAddress& address);
  /// Returns the reason why there is no connection with `peer` yet; empty if none is known.
  std::string last_error(int peer) const;
  /// Returns the time of the next retry() call.
  Deadline next_timer() const;
  void retry();
  /// Sends `words` to each peer to which this rank has sent its response: such a peer may already
  /// have a link.
  void send_to_unconfirmed(ByteView words);

 private:
  struct Dial {
    DialTarget target;
    Retries retries;
    std::optional<Dialer> dialer{};  // none between attempts
    Poller::Token token = 0;
    Deadline retry = Deadline::never();
    std::string last_error{};
  };
  void attempt(int peer);
  void on_event(int peer);
  void failed(int peer, const Error& error);

  Poller* poller_;
  const Clock* clock_;
  const LinkIdentity* identity_;
  Liveness* liveness_;
  std::function<void(int, OwnedFd)> on_authenticated_;
  std::map<int, Dial> dials_;
};

}  // namespace oriel::boot
