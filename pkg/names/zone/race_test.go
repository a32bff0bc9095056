// SPDX-License-Identifier: Apache-2.0

//go:build race

package zone_test

// raceEnabled reports whether the race detector is on, which allocates memory itself.
const raceEnabled = true
