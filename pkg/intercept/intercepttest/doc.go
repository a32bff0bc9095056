// SPDX-License-Identifier: Apache-2.0

// Package intercepttest holds the tests that every backend of pkg/intercept must
// pass, the modelled one and those that write into a kernel.
package intercepttest
