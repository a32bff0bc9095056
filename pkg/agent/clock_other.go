// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package agent

import (
	"time"

	"github.com/nodecache/node-cache/pkg/snapshot"
)

// suspendedTime returns 0: it is unknown.
func suspendedTime() time.Duration { return 0 }

// readClocks reads the wall clock.
func readClocks() snapshot.ClockState { return snapshot.ClockState{Wall: time.Now()} }
