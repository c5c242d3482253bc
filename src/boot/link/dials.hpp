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

/// Identity by which a rank proves itself to the ranks it is linked to.
struct LinkIdentity {
  int rank = 0;
  int size = 1;
  std::uint64_t realm = 0;  ///< the unique id's number
  Key key;                  ///< for KeyPurpose::link
};

/// The connections that a rank is making to other ranks. Each is tried again until it is proven. A
/// peer that refuses connections for longer than Retries allows has died, and a failure of this
/// host's own calls that lasts for kLocalPatience ends the session; `liveness` learns of both.
/// Nothing here waits. Not thread-safe; what the constructor takes must outlive it.
class Dials {
 public:
  static constexpr Duration kLocalPatience = std::chrono::seconds(1);
  /// A listener is open from before its address is known until nobody connects any more.
  static constexpr Duration kRefusalPatience = std::chrono::milliseconds(200);

  Dials(Poller& poller, const Clock& clock, const LinkIdentity& identity, Liveness& liveness,
        std::function<void(int peer, OwnedFd)> on_proven);
  ~Dials();
  Dials(const Dials&) = delete;
  Dials& operator=(const Dials&) = delete;

  /// Starts to connect to a lower rank. Does nothing if that is under way.
  Status start(int peer, const SocketAddress& address);
  /// Returns the reason why there is no connection with `peer` yet; empty if none is known.
  std::string trouble(int peer) const;
  /// When retry() is to be called next.
  Deadline next_timer() const;
  void retry();
  /// Sends `words` to the peers that may have a link already, since they have this rank's proof.
  void say_to_provers(ByteView words);

 private:
  struct Dial {
    DialTarget target;
    Retries retries;
    std::optional<Dialer> dialer{};  // none between attempts
    Poller::Token token = 0;
    Deadline retry = Deadline::never();
    std::string trouble{};
  };
  void attempt(int peer);
  void on_event(int peer);
  void failed(int peer, const Error& error);

  Poller* poller_;
  const Clock* clock_;
  const LinkIdentity* identity_;
  Liveness* liveness_;
  std::function<void(int, OwnedFd)> on_proven_;
  std::map<int, Dial> dials_;
};

}  // namespace oriel::boot
