// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Replaces libFuzzer if its runtime is missing: runs a fuzz target on the given files and on
// mutations of them. Prints the seed, which ORIEL_SEED can set. A finding ends the process.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed);
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

#ifndef ORIEL_RUN_MILLISECONDS
#define ORIEL_RUN_MILLISECONDS 3000
#endif
constexpr std::chrono::milliseconds kDuration{ORIEL_RUN_MILLISECONDS};
constexpr std::size_t kMostBytes = std::size_t{1} << 16;

std::minstd_rand random_bytes;

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

int run_on(const std::string& text) {
  return LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
}

}  // namespace

/// Changes, appends or removes one byte.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most) {
  const auto kind = random_bytes() % 3;
  if (size == 0 || (kind == 0 && size < most)) {
    if (most > size) data[size++] = static_cast<std::uint8_t>(random_bytes());
  } else if (kind == 1) {
    --size;
  } else {
    data[random_bytes() % size] = static_cast<std::uint8_t>(random_bytes());
  }
  return size;
}

int main(int argc, char** argv) {
  const char* const given = std::getenv("ORIEL_SEED");
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::atol(given)) : std::random_device{}();
  random_bytes.seed(seed);
  std::vector<std::string> corpus;
  for (int i = 1; i < argc; ++i) corpus.push_back(read(argv[i]));
  if (corpus.empty()) {
    std::fprintf(stderr, "no files are given\n");
    return 2;
  }
  for (const std::string& text : corpus) run_on(text);
  long runs = 0;
  const auto end = std::chrono::steady_clock::now() + kDuration;
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    std::string text = corpus[random_bytes() % corpus.size()];
    const std::size_t size = text.size();
    text.resize(kMostBytes);
    if (size > kMostBytes) continue;
    text.resize(LLVMFuzzerCustomMutator(reinterpret_cast<std::uint8_t*>(text.data()), size,
                                        kMostBytes, static_cast<unsigned>(random_bytes())));
    run_on(text);
  }
  std::printf("seed %u: %zu files, %ld changes of them\n", seed, corpus.size(), runs);
  return 0;
}
