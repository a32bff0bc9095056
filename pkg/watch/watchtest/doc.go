// SPDX-License-Identifier: Apache-2.0

// Package watchtest is a fake API server with faults, for tests.
package watchtest
