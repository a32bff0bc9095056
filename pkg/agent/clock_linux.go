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

// suspendedTime returns how long the host was suspended since boot. Other processes may run between the two
// clock reads, so it takes the longest of three: a value may be too short but never too long.
func suspendedTime() (longest time.Duration) {
	for range 3 {
		var boot, awake unix.Timespec
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
			return 0
		}
		longest = max(longest, time.Duration(boot.Nano()-awake.Nano()))
	}
	return longest
}

// readClocks reads the host's clocks.
func readClocks() snapshot.ClockState {
	m := snapshot.ClockState{Wall: time.Now()}
	var up unix.Timespec
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return m // the wall clock alone
	}
	id, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err == nil && len(id) == len(m.BootID) {
		copy(m.BootID[:], id)
		m.Uptime = time.Duration(up.Nano())
	}
	return m
}
