// SPDX-License-Identifier: Apache-2.0

// Package guard holds the rules of the repository that are checked as tests.
package guard
