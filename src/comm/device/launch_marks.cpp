// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/launch_marks.hpp"

#include <algorithm>

#include "base/try.hpp"

namespace oriel::comm {

LaunchMarks::~LaunchMarks() {
  for (const CUevent event : events_) {
    if (event != nullptr) static_cast<void>(cuda().event_destroy(event));
  }
}

Status LaunchMarks::record(StreamScope& on) {
  CUevent& event = event_of(count_ + 1);
  if (event == nullptr) {
    ORIEL_TRY(const auto scope, CudaScope::enter(on.context()));
    ORIEL_CHECK(
        cuda_status("creating an event", cuda().event_create(&event, CU_EVENT_DISABLE_TIMING)));
  }
  ORIEL_CHECK(cuda_status("marking the end of a call",
                          on.call([&] { return cuda().event_record(event, on.stream()); })));
  ++count_;
  return {};
}

std::uint64_t LaunchMarks::ended() {
  // The events of older launches have been recorded again.
  std::uint64_t first = std::max(ended_, count_ - std::min<std::uint64_t>(count_, kMarks));
  std::uint64_t last = count_;
  while (first < last) {
    const std::uint64_t middle = last - (last - first) / 2;
    if (cuda().event_query(event_of(middle)) == CUDA_SUCCESS) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return ended_ = first;
}

}  // namespace oriel::comm
