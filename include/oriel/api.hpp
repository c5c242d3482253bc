// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what the shared library exports to C++ callers. Everything else is hidden, so that neither
/// our names nor those of the libraries inside us can clash with a program's own.
#define ORIEL_API [[gnu::visibility("default")]]
