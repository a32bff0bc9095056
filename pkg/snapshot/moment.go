// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"errors"
	"time"
)

// A Moment is a time as a machine tells it.
type Moment struct {
	Wall time.Time     // time of day
	Boot [16]byte      // tells this boot of the machine from others; zero: not known
	Up   time.Duration // since that boot, with the time that the machine slept
}

var errFuture = errors.New("it is from the future")

// since is how long after an earlier moment m is: by the clock that nobody sets, if the machine was not booted in
// between, else by the time of day.
func (m Moment) since(earlier Moment) (time.Duration, error) {
	passed := m.Wall.Round(0).Sub(earlier.Wall.Round(0))
	if m.Boot == earlier.Boot && m.Boot != [16]byte{} {
		passed = m.Up - earlier.Up
	}
	if passed < 0 {
		return 0, errFuture
	}
	return passed, nil
}
