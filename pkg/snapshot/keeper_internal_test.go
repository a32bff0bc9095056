// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"testing"
	"time"
)

func TestClockState(t *testing.T) {
	t.Parallel()
	a := readClocks(time.Now())
	time.Sleep(time.Millisecond)
	b := readClocks(time.Now())
	if a.BootID == [16]byte{} || a.BootID != b.BootID || b.Uptime <= a.Uptime || !b.Wall.After(a.Wall) {
		t.Errorf("%+v, then %+v", a, b)
	}
}
