// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/hex"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/snapshot"
)

// asleep is how long the machine was suspended since its boot. Other processes may run between the two readings, so the
// longest of three is taken: one may be too short, and none too long.
func asleep() (longest time.Duration) {
	for range 3 {
		var boot, awake unix.Timespec
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
			return 0
		}
		longest = max(longest, time.Duration(boot.Nano()-awake.Nano()))
	}
	return longest
}

// thisMoment reads the machine's clocks.
func thisMoment() snapshot.Moment {
	m := snapshot.Moment{Wall: time.Now()}
	var up unix.Timespec
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return m // the time of day has to do
	}
	id, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err == nil && len(id) == len(m.Boot) {
		copy(m.Boot[:], id)
		m.Up = time.Duration(up.Nano())
	}
	return m
}
