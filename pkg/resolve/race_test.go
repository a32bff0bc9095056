// SPDX-License-Identifier: Apache-2.0

//go:build race

package resolve_test

// raceEnabled reports whether the race detector is built in.
const raceEnabled = true
