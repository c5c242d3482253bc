// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace oriel::perf {

/// Returns the middle value, or the mean of the middle two. Requires at least one value.
double median(std::vector<double> values);

/// Returns the smallest value that at least `fraction` of all values do not exceed. Requires at
/// least one value and 0 < fraction <= 1.
double percentile(std::vector<double> values, double fraction);

struct Interval {
  double low = 0;
  double high = 0;
};

/// Returns a 95 % interval of the median by the percentile bootstrap (B. Efron, "Bootstrap
/// methods", 1979). Takes 10,000 resamples; equal numbers of values get the same resamples. With at
/// most 5 values the interval spans all of them.
Interval bootstrap_median(const std::vector<double>& values);

}  // namespace oriel::perf
