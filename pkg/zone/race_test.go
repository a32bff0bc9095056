// SPDX-License-Identifier: Apache-2.0

//go:build race

package zone_test

// raced says that the race detector is in, which allocates for itself.
const raced = true
