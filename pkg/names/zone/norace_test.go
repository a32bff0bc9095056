// SPDX-License-Identifier: Apache-2.0

//go:build !race

package zone_test

const raceEnabled = false
