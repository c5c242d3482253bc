// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace oriel::perf {

/// The middle value, or the mean of the middle two. Requires at least one value.
double median(std::vector<double> values);

/// The smallest value that at least `fraction` of all values do not exceed. Requires a value, and
/// 0 < fraction <= 1.
double percentile(std::vector<double> values, double fraction);

struct Interval {
  double low = 0;
  double high = 0;
};

/// A 95 % interval of the median by the percentile bootstrap (B. Efron, "Bootstrap methods", 1979):
/// 10,000 resamples, always the same ones for the same number of values. With fewer than about 9
/// values it mostly spans all of them.
Interval bootstrap_median(const std::vector<double>& values);

}  // namespace oriel::perf
