// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/copy/late_stores.hpp"

#include "net/copy/host_memory.hpp"

namespace oriel::net {

bool LateStores::land(TimePoint now) {
  bool any = false;
  while (!stores_.empty() && stores_.front().due <= now) {
    store_bytes(stores_.front().to, stores_.front().bytes);
    stores_.pop_front();
    any = true;
  }
  return any;
}

void LateStores::land_all() {
  static_cast<void>(land(TimePoint::max()));
}

}  // namespace oriel::net
