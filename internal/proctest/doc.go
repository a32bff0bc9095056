// SPDX-License-Identifier: Apache-2.0

// Package proctest runs programs for tests.
package proctest
