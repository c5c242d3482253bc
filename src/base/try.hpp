// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

/// Returns errors early, the one place in Oriel where a macro hides control flow.
///   ORIEL_TRY(auto fd, open_file(path));      declares fd, or returns the error
///   ORIEL_CHECK(fd.write(bytes));             goes on, or returns the error
/// The _CO_ forms do the same inside a coroutine.

#define ORIEL_DETAIL_CONCAT2(a, b) a##b
#define ORIEL_DETAIL_CONCAT(a, b) ORIEL_DETAIL_CONCAT2(a, b)

#define ORIEL_DETAIL_TRY(ret, tmp, decl, ...) \
  auto tmp = (__VA_ARGS__);                   \
  if (!tmp.ok()) ret std::move(tmp).error();  \
  decl = std::move(tmp).value()

#define ORIEL_DETAIL_CHECK(ret, tmp, ...)      \
  do {                                         \
    auto tmp = (__VA_ARGS__);                  \
    if (!tmp.ok()) ret std::move(tmp).error(); \
  } while (false)

#define ORIEL_TRY(decl, ...) \
  ORIEL_DETAIL_TRY(return, ORIEL_DETAIL_CONCAT(oriel_try_, __LINE__), decl, __VA_ARGS__)
#define ORIEL_CHECK(...) ORIEL_DETAIL_CHECK(return, oriel_check_, __VA_ARGS__)
#define ORIEL_CO_TRY(decl, ...) \
  ORIEL_DETAIL_TRY(co_return, ORIEL_DETAIL_CONCAT(oriel_try_, __LINE__), decl, __VA_ARGS__)
#define ORIEL_CO_CHECK(...) ORIEL_DETAIL_CHECK(co_return, oriel_check_, __VA_ARGS__)
