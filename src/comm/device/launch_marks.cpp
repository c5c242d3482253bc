// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/launch_marks.hpp"

#include <algorithm>

#include "base/try.hpp"

namespace oriel::comm {

LaunchMarks::~LaunchMarks() {
  for (const auto& event : events_) {
    if (event != nullptr) static_cast<void>(cuda().event_destroy(event));
  }
}

Status LaunchMarks::record(StreamScope& on) {
  const std::uint64_t launch = count() + 1;
  std::atomic<CUevent>& event = events_[(launch - 1) % kMarks];
  if (event == nullptr) {
    ORIEL_TRY(const auto scope, CudaScope::enter(on.context()));
    CUevent made = nullptr;
    ORIEL_CHECK(
        cuda_status("creating an event", cuda().event_create(&made, CU_EVENT_DISABLE_TIMING)));
    event = made;
  }
  ORIEL_CHECK(cuda_status("marking the end of a call",
                          on.call([&] { return cuda().event_record(event, on.stream()); })));
  count_.store(launch, std::memory_order_release);
  return {};
}

std::uint64_t LaunchMarks::ended() {
  // The event of a launch may be recorded again during the search, for a launch kMarks later. It
  // then looks incomplete, so the result is at worst too small.
  std::uint64_t last = count();
  std::uint64_t first = ended_.load(std::memory_order_relaxed);
  first = std::max(first, last - std::min<std::uint64_t>(last, kMarks));
  while (first < last) {
    const std::uint64_t middle = last - (last - first) / 2;
    if (cuda().event_query(events_[(middle - 1) % kMarks]) == CUDA_SUCCESS) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  std::uint64_t known = ended_.load(std::memory_order_relaxed);
  while (known < first && !ended_.compare_exchange_weak(known, first, std::memory_order_relaxed)) {
  }
  return std::max(known, first);
}

}  // namespace oriel::comm
