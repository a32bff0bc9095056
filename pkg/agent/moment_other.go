// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package agent

import (
	"time"

	"github.com/nodecache/node-cache/pkg/snapshot"
)

// asleep is not known.
func asleep() time.Duration { return 0 }

// thisMoment is the time of day.
func thisMoment() snapshot.Moment { return snapshot.Moment{Wall: time.Now()} }
