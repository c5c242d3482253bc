// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Exports a symbol of the shared library to C++ callers. All other symbols are hidden, so neither
/// Oriel's names nor those of libraries linked into it can clash with a program's own.
#define ORIEL_API [[gnu::visibility("default")]]
