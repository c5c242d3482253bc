// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/abi/last_error.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/log.hpp"
#include "base/thread_object.hpp"

namespace oriel::comm {
namespace {

/// Text of a thread whose thread-local objects are destroyed, when nothing would free a string.
using LateText = std::array<char, 1024>;

thread_local LateText late_last_text{};
thread_local LateText late_held_text{};

void copy(std::string_view text, LateText& out) {
  const std::size_t length = std::min(text.size(), out.size() - 1);
  std::copy_n(text.begin(), length, out.begin());
  out[length] = '\0';
}

struct Texts {
  Texts() = default;
  ~Texts() { copy(last, late_last_text); }
  Texts(const Texts&) = delete;
  Texts& operator=(const Texts&) = delete;

  std::string last;
  std::string held;
};
using ThreadTexts = ThreadObject<Texts>;

std::string full_text(const Error& error) {
  return std::string(to_string(error.code())) + " (" + to_string(error.scope()) +
         "): " + error.to_string();
}

void remember(std::string text) {
  if (ThreadTexts::ended()) {
    copy(text, late_last_text);
  } else {
    ThreadTexts::get().last = std::move(text);
  }
}

}  // namespace

void remember_error(const Error& error) {
  std::string text = full_text(error);
  Log().warn("{}", text);
  remember(std::move(text));
}

void remember_known_error(const Error& error) {
  remember(full_text(error));
}

const char* last_error_text() {
  return ThreadTexts::ended() ? late_last_text.data() : ThreadTexts::get().last.c_str();
}

const char* hold_text(std::string text) {
  if (ThreadTexts::ended()) {
    copy(text, late_held_text);
    return late_held_text.data();
  }
  std::string& held = ThreadTexts::get().held;
  held = std::move(text);
  return held.c_str();
}

}  // namespace oriel::comm
