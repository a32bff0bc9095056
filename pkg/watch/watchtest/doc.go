// SPDX-License-Identifier: Apache-2.0

// Package watchtest stands in for an API server and its faults in tests.
package watchtest
