// SPDX-License-Identifier: Apache-2.0

// Package intercepttest contains a fake backend, [Fake]. The tests of pkg/intercept check the fake and the real backends against
// the same contract.
package intercepttest
