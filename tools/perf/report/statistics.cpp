// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "perf/report/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace oriel::perf {
namespace {

constexpr int kResamples = 10'000;

}  // namespace

double median(std::vector<double> values) {
  const std::size_t half = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double percentile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  const auto rank =
      static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(values.size()) - 1e-9));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

Interval bootstrap_median(const std::vector<double>& values) {
  std::mt19937_64 random(20'000 + values.size());
  std::uniform_int_distribution<std::size_t> pick(0, values.size() - 1);
  std::vector<double> medians;
  std::vector<double> sample(values.size());
  for (int i = 0; i < kResamples; ++i) {
    for (double& one : sample) one = values[pick(random)];
    medians.push_back(median(sample));
  }
  return {percentile(medians, 0.025), percentile(medians, 0.975)};
}

}  // namespace oriel::perf
